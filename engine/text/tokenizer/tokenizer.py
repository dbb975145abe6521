"""The tokenizer of one checkpoint folder: text to ids and back, safe for untrusted text.

The `tokenizers` library itself reads `tokenizer.json`; transformers (large, slow to import) is used
only where a checkpoint has no such file. See docs/decisions/0002.
"""

import json
import re
import sys
from array import array
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import tokenizers
from tokenizers import pre_tokenizers

from continuo.engine import json_files
from continuo.engine.errors import ModelError, TooLong
from continuo.engine.resident_cache import CacheSize, ResidentCache
from continuo.engine.text.tokenizer.chunked_encoding import ChunkedEncoder

MARK_OPEN, MARK_CLOSE = "\ufdd0", "\ufdd1"
"""Delimiters of a stretch that looks like a control token and must be encoded as plain text. Both
are noncharacters, which Unicode reserves for internal use; in untrusted text they are replaced by
U+FFFD."""

_REPLACEMENT = "\ufffd"
_ENCODINGS_BYTES_MAX = 32 * 1024 * 1024
"""Size of the cache of encoded texts: searching for clean splits encodes the same texts
repeatedly."""
_ENCODING_OVERHEAD_BYTES = 500
"""Memory of a cached text without its characters and ids."""
_SEARCH_CHARS_MAX = 16 * 1024
"""Number of characters that one call of `re` searches, which takes a few milliseconds at most."""
_SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file; {} if the file does not exist. Raises ModelError."""
    return json_files.read_json(path) or {}


class Tokenizer:
    """Encodes text according to how far it is trusted.

    `encode` parses control tokens written in the text, `encode_untrusted` never does, and
    `encode_marked` parses those outside MARK_OPEN...MARK_CLOSE.
    """

    def __init__(self, raw: tokenizers.Tokenizer, template_text: str = "") -> None:
        """`template_text`: all text that the chat template itself can emit.

        Control tokens are the special tokens, and the added tokens that occur in `template_text`;
        untrusted text never becomes one of them.
        """
        raw.no_padding()
        raw.no_truncation()
        self.bos_ids = _find_bos_ids(raw)
        """The ids that the tokenizer's own post-processor puts before a text."""
        # The post-processor would add special tokens and shift the offsets of words.
        cast(Any, raw).post_processor = None
        self.raw = raw
        self._tokens_max: int | None = None
        added = raw.get_added_tokens_decoder()
        self.added_tokens: dict[int, str] = {id: token.content for id, token in added.items()}
        self.special_ids = frozenset(id for id, token in added.items() if token.special)
        self._control_ids = {
            token.content: id
            for id, token in added.items()
            if token.special or token.content in template_text
        }
        self._added_ids = {content: id for id, content in self.added_tokens.items()}
        self._added = re.compile(f"({_compile_alternatives(self._added_ids).pattern})")
        self._lookalikes = _compile_alternatives(self._control_ids)
        self._trusted = re.compile(f"((?<!{MARK_OPEN})(?:{self._lookalikes.pattern}))")
        # Tokens that absorb the spaces beside them are not reliable borders.
        sharp = [text for text, id in self._control_ids.items() if not _strips_spaces(added[id])]
        self._border = re.compile(f"(?<!{MARK_OPEN})(?:{_compile_alternatives(sharp).pattern})")
        # SentencePiece-like tokenizers insert a space at the beginning of a text; text after this
        # token is not at the beginning.
        self._anchor = next(
            (added[id] for id in sorted(self.special_ids) if not _strips_spaces(added[id])), None
        )
        self._longest_control = max(map(len, self._control_ids), default=1)
        anchor = None if self._anchor is None else self._anchor.content
        self._encoder = ChunkedEncoder(raw, anchor)
        self._plain_encoder = ChunkedEncoder(_strip_added_tokens(raw))
        self._encodings: ResidentCache[tuple[str, bool], array[int]] = ResidentCache(
            _ENCODINGS_BYTES_MAX, entry_bytes_max=_ENCODINGS_BYTES_MAX
        )

    @classmethod
    def load(cls, folder: Path, template_text: str = "") -> "Tokenizer":
        """Load the tokenizer of a folder. Raises ModelError, naming the missing or broken file."""
        return cls(_load_raw(folder), template_text)

    def limit_tokens(self, tokens_max: int) -> None:
        """Make the encoding of a text to more than `tokens_max` ids raise TooLong, before all of
        them are built."""
        self._tokens_max = tokens_max
        self._encoder.tokens_max = self._plain_encoder.tokens_max = tokens_max

    @cached_property
    def token_chars_max(self) -> int | None:
        """The largest number of characters that one token can stand for: a text of n characters has
        at least n / token_chars_max tokens. None if no such bound is known."""
        return compute_token_chars_max(self.raw)

    @cached_property
    def vocab_size(self) -> int:
        """The largest token id plus one."""
        return max(self.raw.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def encodings_size(self) -> CacheSize:
        """Size of the cache of encoded texts."""
        return self._encodings.size

    def id_of(self, token: str) -> int | None:
        return self.raw.token_to_id(token)

    def split_added_tokens(self, text: str) -> list[tuple[str, int | None]]:
        """Split a text into the added tokens that it spells, with their ids, and the text between
        them."""
        return [(piece, self._added_ids.get(piece)) for piece in self._added.split(text) if piece]

    def encode(self, text: str, *, is_continuation: bool = False) -> list[int]:
        """Encode trusted text: control tokens written in `text` are parsed; none are added.

        `is_continuation`: `text` continues other text, so a tokenizer that inserts a space at the
        beginning of a text does not do so here.
        """
        key = text, is_continuation
        ids = self._encodings.get(key)
        if ids is None:
            ids = array("I", self._encoder.encode(text, is_continuation=is_continuation))
            cost_bytes = _ENCODING_OVERHEAD_BYTES + sys.getsizeof(text) + ids.itemsize * len(ids)
            self._encodings.add(key, ids, cost_bytes)
        return ids.tolist()

    def encode_untrusted(self, text: str, *, is_continuation: bool = False) -> list[int]:
        """Encode untrusted text: stretches that look like control tokens are encoded as plain
        text."""
        return self.encode_marked(self.mark_lookalikes(text), is_continuation=is_continuation)

    @property
    def control_tokens(self) -> Collection[str]:
        """The tokens that a chat template writes, and a user may not."""
        return self._control_ids.keys()

    def mark_lookalikes(self, text: str) -> str:
        """Mark untrusted text: everything that looks like a control token is put between MARK_OPEN
        and MARK_CLOSE."""
        for noncharacter in (MARK_OPEN, MARK_CLOSE):
            if noncharacter in text:
                text = text.replace(noncharacter, _REPLACEMENT)
        parts: list[str] = []
        at = 0
        for found in self._iter_matches(self._lookalikes, text):
            parts += text[at : found.start()], MARK_OPEN, found[0], MARK_CLOSE
            at = found.end()
        return "".join((*parts, text[at:])) if parts else text

    def encode_marked(self, text: str, *, is_continuation: bool = False) -> list[int]:
        """Encode text that may contain marked stretches.

        Each marked stretch, with the text around it up to the nearest control tokens outside marks,
        is encoded as if there were no control tokens. Raises TooLong.
        """
        if MARK_OPEN not in text and MARK_CLOSE not in text:
            return self.encode(text, is_continuation=is_continuation)
        ids: list[int] = []
        for run in self._iter_runs(text):
            if run in self._control_ids:
                ids.append(self._control_ids[run])
            elif MARK_OPEN in run or MARK_CLOSE in run:
                ids += self._spell_out(run.replace(MARK_OPEN, "").replace(MARK_CLOSE, ""))
            elif run:
                ids += self.encode(run, is_continuation=is_continuation or bool(ids))
            if self._tokens_max is not None and len(ids) > self._tokens_max:
                raise TooLong(
                    f"a text of {len(text):,} characters is more than {self._tokens_max:,} tokens"
                )
        return ids

    def _iter_runs(self, text: str) -> Iterator[str]:
        """Yield the control tokens of marked text that are outside marks, and the runs of text
        between them, in order."""
        at = 0
        for found in self._iter_matches(self._trusted, text):
            yield text[at : found.start()]
            yield found[0]
            at = found.end()
        yield text[at:]

    def _iter_matches(
        self, pattern: re.Pattern[str], text: str, at: int = 0
    ) -> Iterator[re.Match[str]]:
        """Yield the matches of a pattern of control tokens, like `finditer`.

        Searches only a bounded stretch of the text per call of `re`, because `re` holds the
        interpreter lock.
        """
        while at < len(text):
            end = at + _SEARCH_CHARS_MAX
            for found in pattern.finditer(text, at, end + self._longest_control):
                if found.start() >= end:
                    break
                yield found
                at = found.end()
            at = max(at, end)

    def find_control_tokens(self, text: str) -> list[str]:
        """Find the control tokens of marked text that are outside marks, in order."""
        return [found[0] for found in self._iter_matches(self._trusted, text)]

    def find_last_border(self, text: str) -> int:
        """Return the offset after the last control token of marked text that is a reliable border,
        where text always splits cleanly into ids. Returns 0 if the text has none."""
        return max((found.end() for found in self._iter_matches(self._border, text)), default=0)

    def splits_cleanly_at(self, text: str, at: int) -> bool:
        """Whether the ids of `text`, which may be marked, are those of text[:at] followed by those
        of text[at:].

        Control tokens are reliable borders, so only the text from the last one before `at` to the
        next one after it is encoded.
        """
        left, right = text[:at], text[at:]
        start = self.find_last_border(left)
        next_border = next(self._iter_matches(self._border, right), None)
        end = next_border.start() if next_border else len(right)
        if start == len(left) or end == 0:
            return True
        left, right = left[start:], right[:end]
        apart = self.encode_marked(left, is_continuation=start > 0) + self.encode_marked(
            right, is_continuation=True
        )
        return apart == self.encode_marked(left + right, is_continuation=start > 0)

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return self.raw.decode(list(ids), skip_special_tokens=skip_special)

    def _spell_out(self, text: str) -> list[int]:
        """Encode `text` with the vocabulary alone, without parsing added tokens. Never returns the
        id of a control token."""
        ids = self._plain_encoder.encode(text)
        forbidden = set(self._control_ids.values())
        if forbidden.isdisjoint(ids):
            return ids
        # The vocabulary contains the control token as an ordinary piece: break up its spelling.
        broken = re.split(
            f"(?<=.)(?={'|'.join(re.escape(t[1:]) for t in self._control_ids)})", text
        )
        ids = [id for part in broken for id in self._plain_encoder.encode(part)]
        return [id for id in ids if id not in forbidden]


def read_special_tokens(folder: Path) -> dict[str, str]:
    """Read the tokens that templates refer to as bos_token, eos_token, ... Raises ModelError."""
    config = read_json(folder / "tokenizer_config.json")
    named: dict[str, str] = {}
    for name in _SPECIAL_NAMES:
        value = config.get(name)
        text = cast(dict[str, Any], value).get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            named[name] = text
    return named


_COMPOSED_CHARS_MAX = 4
"""Maximum number of characters that normalization to NFC or NFKC composes into one: the inverse of
the expansion factor of NFD in Unicode Standard Annex 15. A token may stand for this many times as
many characters of the original text as of the normalized text."""
_SHORTENING_FACTORS = {"NFC": _COMPOSED_CHARS_MAX, "NFKC": _COMPOSED_CHARS_MAX, "NFD": 1, "NFKD": 1}
_LENGTH_KEEPING_STEPS = {
    *("ByteLevel", "Metaspace", "Digits", "UnicodeScripts", "Punctuation", "Split", "Prepend")
}


def compute_token_chars_max(raw: tokenizers.Tokenizer) -> int | None:
    """Compute the largest number of characters that one token can stand for. Returns None if no
    bound is known.

    The bound is known for a BPE that spells out unknown text in bytes or character by character, if
    no step of its normalizer or pre-tokenizer drops a character. Tokenizers of chat models are of
    this kind.
    """
    state = cast(dict[str, Any], json.loads(raw.to_str()))
    model: dict[str, Any] = state["model"]
    steps = [*_flatten_steps(state["pre_tokenizer"]), *_flatten_steps(state["normalizer"])]
    if model["type"] != "BPE" or not (_is_byte_level(model, steps) or _counts_unknown(model)):
        return None
    factor = 1
    for step in steps:
        if step["type"] in _SHORTENING_FACTORS:
            factor *= _SHORTENING_FACTORS[step["type"]]
        elif step["type"] == "Replace":
            pattern = step["pattern"].get("String")
            if pattern is None or len(step["content"]) < len(pattern):
                return None
        elif step["type"] not in _LENGTH_KEEPING_STEPS or step.get("behavior") == "Removed":
            return None
    added: list[dict[str, Any]] = state["added_tokens"]
    if any(not token["special"] and (token["lstrip"] or token["rstrip"]) for token in added):
        return None
    vocabulary: dict[str, int] = model["vocab"]
    longest = max(map(len, vocabulary), default=1)
    return factor * max(longest, *(len(token["content"]) for token in added), 1)


def _is_byte_level(model: dict[str, Any], steps: Sequence[dict[str, Any]]) -> bool:
    if any(step["type"] == "ByteLevel" for step in steps):
        return all(byte in model["vocab"] for byte in pre_tokenizers.ByteLevel.alphabet())
    return bool(model.get("byte_fallback")) and all(
        f"<0x{byte:02X}>" in model["vocab"] for byte in range(256)
    )


def _counts_unknown(model: dict[str, Any]) -> bool:
    """Whether the model encodes each unknown character as a separate token."""
    return model.get("unk_token") is not None and not model.get("fuse_unk")


def _flatten_steps(step: dict[str, Any] | None) -> list[dict[str, Any]]:
    """List the steps of a normalizer or pre-tokenizer, with sequences flattened."""
    if step is None:
        return []
    inner = step.get("normalizers") or step.get("pretokenizers")
    return [step] if inner is None else [leaf for each in inner for leaf in _flatten_steps(each)]


def _find_bos_ids(raw: tokenizers.Tokenizer) -> tuple[int, ...]:
    probe = "a"
    framed = raw.encode(probe, add_special_tokens=True).ids
    plain = raw.encode(probe, add_special_tokens=False).ids
    count = next((n for n in range(len(framed)) if framed[n : n + len(plain)] == plain), 0)
    return tuple(framed[:count])


def _strip_added_tokens(raw: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """Copy a tokenizer's model, normalizer and pre-tokenizer, without its added tokens."""
    plain = tokenizers.Tokenizer(raw.model)
    if raw.normalizer is not None:
        plain.normalizer = raw.normalizer
    if raw.pre_tokenizer is not None:
        plain.pre_tokenizer = raw.pre_tokenizer
    return plain


def _strips_spaces(token: tokenizers.AddedToken) -> bool:
    return token.lstrip or token.rstrip


def _compile_alternatives(tokens: Collection[str]) -> re.Pattern[str]:
    longest_first = sorted(tokens, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or "(?!)")


def _load_raw(folder: Path) -> tokenizers.Tokenizer:
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder")
    path = folder / "tokenizer.json"
    if not path.exists():
        return _convert(folder)
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # noqa: BLE001 - the library raises no narrower class
        raise ModelError(f"{path}: broken ({_shorten_error(error)})") from None


def _convert(folder: Path) -> tokenizers.Tokenizer:
    """Load the tokenizer of a folder without tokenizer.json: transformers converts its files."""
    if not any((folder / name).exists() for name in ("tokenizer.model", "vocab.json", "vocab.txt")):
        raise ModelError(f"{folder}: tokenizer.json is missing")
    import transformers  # noqa: PLC0415 - slow to import, and few checkpoints need it

    try:
        return cast(Any, transformers).AutoTokenizer.from_pretrained(str(folder)).backend_tokenizer
    except Exception as error:  # noqa: BLE001 - each kind of tokenizer fails in its own way
        raise ModelError(
            f"{folder}: tokenizer.json is missing and the other tokenizer files cannot be "
            f"converted ({_shorten_error(error)})"
        ) from None


def _shorten_error(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
