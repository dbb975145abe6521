"""Text: everything about words that a checkpoint folder says, in one place."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from continuo.engine.errors import ModelError
from continuo.engine.text.chat_template.jinja_program import JinjaProgram
from continuo.engine.text.chat_template.renderer import TemplateRenderer
from continuo.engine.text.chat_template.template import ChatTemplate
from continuo.engine.text.grammar import GrammarCompiler
from continuo.engine.text.tokenizer.detokenizer import Detokenizer
from continuo.engine.text.tokenizer.tokenizer import Tokenizer, read_json, read_special_tokens


class ModelText:
    """Loaded from a checkpoint folder (tokenizer.json, tokenizer_config.json, chat template)."""

    folder: str
    template: ChatTemplate | None
    """None: the checkpoint has no chat template."""
    stop_ids: tuple[int, ...]
    """Ids that end an answer: all that config, generation config and tokenizer name."""

    def __init__(self, folder: str, *, tokens_max: int | None = None, **options: Any) -> None:
        """A text of more than `tokens_max` ids raises TooLong. `options` go to the chat template.
        Raises ModelError: what is missing or broken."""
        self.folder = folder
        path = Path(folder)
        names = read_special_tokens(path)
        source = _read_template_source(path)
        program = JinjaProgram(source, names) if source else None
        self._tokenizer = Tokenizer.load(path, program.template_text if program else "", tokens_max)
        if tokens_max is not None:
            _ = self._tokenizer.token_chars_max  # takes a while, so now
        self.stop_ids = _read_stop_ids(path, self._tokenizer.id_of(names.get("eos_token", "")))
        self.template = None
        if program:
            writer = TemplateRenderer(program, self._tokenizer, options)
            self.template = ChatTemplate(writer, self._tokenizer, self.stop_ids)

    @property
    def vocab_size(self) -> int:
        """One more than the largest id the tokenizer knows (the model's may be larger)."""
        return self._tokenizer.vocab_size

    def encode(self, text: str) -> list[int]:
        """Ids of text we trust: control tokens written in it are read, none is added."""
        return self._tokenizer.encode(text)

    def encode_untrusted(self, text: str) -> list[int]:
        """Ids of text from outside: what looks like a control token is spelt out."""
        return self._tokenizer.encode_untrusted(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Without special tokens."""
        return self._tokenizer.decode(ids)

    def create_detokenizer(self) -> Detokenizer:
        """Leaves special tokens out, but for those that open a call of a tool (`ToolParser`)."""
        format = self.template.tool_format if self.template else None
        markers = (format.marker, format.close_marker, format.args_marker) if format else ()
        ids = {id for marker in markers if (id := self._tokenizer.id_of(marker)) is not None}
        return Detokenizer(self._tokenizer, visible_ids=ids & self._tokenizer.special_ids)

    def create_grammar_compiler(self, vocab_size: int, wake: Callable[[], None]) -> GrammarCompiler:
        """For a model of so many ids; `wake` as Grammars wants it."""
        return GrammarCompiler(self._tokenizer, vocab_size, self.stop_ids, wake)


def _read_template_source(folder: Path) -> str | None:
    file = folder / "chat_template.jinja"
    if file.exists():
        try:
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
