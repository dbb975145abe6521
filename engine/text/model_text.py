"""Everything textual in a checkpoint folder: tokenizer, chat template, stop ids."""

from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from continuo.engine.errors import ModelError
from continuo.engine.resident_cache import CacheSize
from continuo.engine.sampling import Sampling
from continuo.engine.text.chat_template.jinja_program import JinjaProgram, check_source_size
from continuo.engine.text.chat_template.renderer import TemplateRenderer
from continuo.engine.text.chat_template.template import ChatTemplate
from continuo.engine.text.grammar import GrammarCompiler
from continuo.engine.text.output_channels import (
    OutputDecoder,
    SpokenTextDecoder,
    find_reasoning_format,
    make_splitter,
)
from continuo.engine.text.stop import StopStringMatcher
from continuo.engine.text.tokenizer.detokenizer import Detokenizer
from continuo.engine.text.tokenizer.token_bytes import TokenBytes
from continuo.engine.text.tokenizer.tokenizer import Tokenizer, read_json, read_special_tokens


class ModelText:
    """The text side of a model, from tokenizer.json, tokenizer_config.json and chat template."""

    folder: str
    template: ChatTemplate | None
    """The chat template; None if the checkpoint has none."""
    token_bytes: TokenBytes
    stop_ids: tuple[int, ...]
    """Ids that end a turn: the EOS ids in config.json, generation_config.json and
    tokenizer_config.json."""

    def __init__(self, folder: str, *, tokens_max: int | None = None, **options: Any) -> None:
        """Load a checkpoint folder. `tokens_max`: see `limit_tokens`; None: no limit. `options` are
        passed to the chat template. Raises ModelError, naming the missing or broken file."""
        self.folder = folder
        path = Path(folder)
        names = read_special_tokens(path)
        source = _read_template_source(path)
        program = JinjaProgram(source, names) if source else None
        self._tokenizer = Tokenizer.load(path, program.template_text if program else "")
        if tokens_max is not None:
            self.limit_tokens(tokens_max)
        self.token_bytes = TokenBytes(self._tokenizer)
        self.stop_ids = _read_stop_ids(path, self._tokenizer.id_of(names.get("eos_token", "")))
        self._reasoning_format = find_reasoning_format(self._tokenizer)
        self.template = None
        if program:
            renderer = TemplateRenderer(program, self._tokenizer, options)
            self._reasoning_format = renderer.reasoning_format
            self.template = ChatTemplate(renderer, self._tokenizer, self.stop_ids)

    def limit_tokens(self, tokens_max: int) -> None:
        """Make the encoding of a text to more than `tokens_max` ids raise TooLong."""
        self._tokenizer.limit_tokens(tokens_max)
        _ = self._tokenizer.token_chars_max  # Slow the first time, so computed on loading.

    @cached_property
    def bos_ids(self) -> tuple[int, ...]:
        """Ids that the tokenizer puts before a raw text: a BOS token, or none."""
        return self._tokenizer.bos_ids

    @property
    def vocab_size(self) -> int:
        """The tokenizer's largest id plus one; the model's vocabulary may be larger."""
        return self._tokenizer.vocab_size

    @property
    def cache_sizes(self) -> dict[str, CacheSize]:
        """Sizes of the caches of texts by name."""
        sizes = {"encodings": self._tokenizer.encodings_size}
        if self.template is not None:
            sizes["renderings"] = self.template.renderings_size
        return sizes

    def encode(self, text: str) -> list[int]:
        """Encode trusted text: control tokens written in it are parsed; none are added."""
        return self._tokenizer.encode(text)

    def encode_untrusted(self, text: str) -> list[int]:
        """Encode untrusted text: stretches that look like control tokens are encoded as plain
        text."""
        return self._tokenizer.encode_untrusted(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Decode ids to text without special tokens."""
        return self._tokenizer.decode(ids)

    def create_detokenizer(self) -> Detokenizer:
        """Create a detokenizer that skips special tokens, except those that `ToolParser` needs:
        the markers of tool calls."""
        syntax = self.template.tool_format if self.template else None
        literals = syntax.literals if syntax and not syntax.is_harmony else ()
        ids = {
            id
            for literal in literals
            for _, id in self._tokenizer.split_added_tokens(literal)
            if id is not None
        }
        return Detokenizer(self._tokenizer, visible_ids=ids & self._tokenizer.special_ids)

    def create_output_decoder(self, *, starts_in_reasoning: bool = False) -> OutputDecoder:
        """Create the decoder of a turn's output. `starts_in_reasoning`: the prompt has opened the
        reasoning."""
        splitter = make_splitter(
            self._reasoning_format, self._tokenizer, starts_in_reasoning=starts_in_reasoning
        )
        return OutputDecoder(self.create_detokenizer(), splitter)

    def create_stop_matcher(self, sampling: Sampling) -> StopStringMatcher:
        """Create the matcher of a turn's stop strings, which are searched in its text alone."""
        decoder = self.create_output_decoder(starts_in_reasoning=sampling.starts_in_reasoning)
        return StopStringMatcher(sampling.stop, SpokenTextDecoder(decoder))

    def create_grammar_compiler(self, vocab_size: int, wake: Callable[[], None]) -> GrammarCompiler:
        """Create a grammar compiler for a model of `vocab_size` ids; `wake` is passed to
        `GrammarCompiler`."""
        return GrammarCompiler(self._tokenizer, vocab_size, self.stop_ids, wake)


def _read_template_source(folder: Path) -> str | None:
    file = folder / "chat_template.jinja"
    if file.exists():
        try:
            check_source_size(file.stat().st_size)
            return file.read_text("utf-8")
        except (OSError, ValueError) as error:
            raise ModelError(f"{file}: not readable ({error})") from None
    source = read_json(folder / "tokenizer_config.json").get("chat_template")
    source = source or read_json(folder / "chat_template.json").get("chat_template")
    if isinstance(source, list):
        named = {item.get("name"): item.get("template") for item in cast(list[Any], source)}
        source = named.get("default") or next(iter(named.values()), None)
    if source is not None and not isinstance(source, str):
        raise ModelError(f"{folder}: chat_template is not text")
    return source


def _read_stop_ids(folder: Path, eos: int | None) -> tuple[int, ...]:
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = read_json(folder / name).get("eos_token_id")
        ids = cast(list[object], value) if isinstance(value, list) else [value]
        found += [id for id in ids if isinstance(id, int)]
    return tuple(dict.fromkeys([*found, *([] if eos is None else [eos])]))
