"""Tokenizers of GGUF files, as `tokenizer.json` of the `tokenizers` library."""

from __future__ import annotations

from typing import Any, cast

from continuo.engine.errors import ModelError
from continuo.engine.gguf.container import GgufMetadata
from continuo.engine.gguf.pre_tokenizers import ALIASES, NORMALIZED, REGEXES, WHOLE_WORDS
from continuo.engine.json_files import parse_json

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
"""Values of `tokenizer.ggml.token_type`."""

STOP_TOKENS = {
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>"),
    *("<|endoftext|>", "<|end_of_text|>"),
}
"""Control tokens that end a turn even if the metadata does not name them."""
SPACE = "\u2581"
"""Character that stands for a space in vocabularies of SentencePiece."""


class TokenizerMetadata:
    """The metadata of a tokenizer, `tokenizer.*`, checked as it is read."""

    def __init__(self, file: GgufMetadata) -> None:
        self._file = file
        self.model = cast(str, self._get("ggml.model", str, None))
        self.tokens = self._list("ggml.tokens", str)
        if len(set(self.tokens)) != len(self.tokens):
            raise self.defect("tokenizer.ggml.tokens has equal tokens")
        self.types = self._list("ggml.token_type", int) or [NORMAL] * len(self.tokens)
        if len(self.types) != len(self.tokens):
            raise self.defect(
                f"{len(self.types):,} tokenizer.ggml.token_type for {len(self.tokens):,} tokens"
            )

    @property
    def pre(self) -> str:
        """Name of the pre-tokenizer. Raises ModelError if it is not supported."""
        name = cast(str, self._get("ggml.pre", str, "default"))
        name = ALIASES.get(name, name)
        if name not in REGEXES:
            raise self.defect(
                f"pre-tokenizer {name!r} is not supported; supported are "
                f"{', '.join([*REGEXES, *ALIASES])}"
            )
        return name

    @property
    def is_normalized(self) -> bool:
        """Whether the model reads text in Unicode's form NFC."""
        return not {self.pre, self._get("ggml.pre", str, "default")}.isdisjoint(NORMALIZED)

    @property
    def merges(self) -> list[list[str]]:
        """Pairs of tokens, without those that no text can contain because a token is missing."""
        known = set(self.tokens)
        pairs = [merge.split(" ", 1) for merge in self._list("ggml.merges", str)]
        return [pair for pair in pairs if {*pair, "".join(pair)} <= known and len(pair) > 1]

    @property
    def scores(self) -> list[float]:
        scores = self._list("ggml.scores", float)
        if len(scores) != len(self.tokens):
            raise self.defect(
                f"{len(scores):,} tokenizer.ggml.scores for {len(self.tokens):,} tokens"
            )
        return scores

    @property
    def complete(self) -> dict[str, Any] | None:
        """The content of tokenizer.json, if the file has it whole."""
        text = self._get("huggingface.json", str, "")
        try:
            value = parse_json(text) if text else None
        except ValueError as error:
            raise self.defect(f"tokenizer.huggingface.json is not JSON: {error}") from None
        if value is not None and not isinstance(value, dict):
            raise self.defect("tokenizer.huggingface.json is not a JSON object")
        return cast("dict[str, Any] | None", value)

    @property
    def chat_template(self) -> str:
        return cast(str, self._get("chat_template", str, ""))

    def flag(self, name: str, *, default: bool) -> bool:
        return cast(bool, self._get(f"ggml.{name}", bool, default))

    def token(self, name: str) -> str | None:
        """Return the token of a role (bos, eos, …), or None if the file names none."""
        key = f"ggml.{name}_token_id"
        if f"tokenizer.{key}" not in self._file.metadata:
            return None
        id = cast(int, self._get(key, int, None))
        if not 0 <= id < len(self.tokens):
            raise self.defect(f"tokenizer.{key} is {id}, of {len(self.tokens):,} tokens")
        return self.tokens[id]

    def stop_ids(self) -> list[int]:
        """Return the ids that end a turn."""
        named = {self.token(role) for role in ("eos", "eot", "eom")}
        return [
            id
            for id, (token, type) in enumerate(zip(self.tokens, self.types, strict=True))
            if token in named or (token in STOP_TOKENS and type == CONTROL)
        ]

    def defect(self, reason: str) -> ModelError:
        return ModelError(f"{self._file.path}: {reason}")

    def _list(self, key: str, kind: type) -> list[Any]:
        values = cast(list[Any], self._get(key, list, []))
        if not all(isinstance(value, kind) for value in values):
            raise self.defect(f"metadata tokenizer.{key} is not a list of {kind.__name__}")
        return values

    def _get(self, key: str, kind: type, default: Any) -> Any:
        value = self._file.metadata.get(f"tokenizer.{key}", default)
        if value is None:
            raise self.defect(f"metadata tokenizer.{key} is missing")
        if not isinstance(value, kind):
            raise self.defect(f"metadata tokenizer.{key} is not of type {kind.__name__}")
        return value


def build_tokenizer(metadata: TokenizerMetadata) -> dict[str, Any]:
    """Return the content of tokenizer.json. Raises ModelError."""
    if metadata.complete is not None:
        return metadata.complete
    if metadata.model == "gpt2":
        parts = _byte_level(metadata)
    elif metadata.model == "llama":
        parts = _sentencepiece(metadata, _find_merges(metadata), default_prefix=True)
    elif metadata.model == "gemma4":
        parts = _sentencepiece(metadata, metadata.merges, default_prefix=False)
    else:
        raise metadata.defect(
            f"tokenizer {metadata.model!r} is not supported; supported are 'gpt2', 'llama' and "
            "'gemma4'"
        )
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(metadata),
        "post_processor": _post_processor(metadata),
        **parts,
    }


def build_tokenizer_config(metadata: TokenizerMetadata) -> dict[str, str]:
    """Return the content of tokenizer_config.json."""
    roles = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding", "sep": "seperator"}
    named = {f"{name}_token": metadata.token(role) for name, role in roles.items()}
    return {name: token for name, token in named.items() if token is not None}


def _byte_level(metadata: TokenizerMetadata) -> dict[str, Any]:
    """Return the parts of a byte-level BPE, as of GPT-2."""
    pre = metadata.pre
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    splits: list[dict[str, Any]] = [
        {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
        for regex in REGEXES[pre]
    ]
    steps = [*splits, byte_level | {"use_regex": False}]
    return {
        "normalizer": {"type": "NFC"} if metadata.is_normalized else None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "decoder": byte_level | {"use_regex": True},
        "model": _bpe(metadata, metadata.merges, ignore_merges=pre in WHOLE_WORDS),
    }


def _sentencepiece(
    metadata: TokenizerMetadata, merges: list[list[str]], *, default_prefix: bool
) -> dict[str, Any]:
    """Return the parts of a BPE of SentencePiece: spaces are ▁, and unknown characters are spelt in
    bytes. `default_prefix`: whether a ▁ is put before a text if the metadata does not say so."""
    has_prefix = metadata.flag("add_space_prefix", default=default_prefix)
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    normalizers = [{"type": "Prepend", "prepend": SPACE}] if has_prefix else []
    decoders: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if has_prefix:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    unknown = metadata.token("unknown") or next(
        (
            token
            for token, type in zip(metadata.tokens, metadata.types, strict=True)
            if type == UNKNOWN
        ),
        None,
    )
    more = {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True}
    return {
        "normalizer": {"type": "Sequence", "normalizers": [*normalizers, replace]},
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": _bpe(metadata, merges, **more),
    }


def _find_merges(metadata: TokenizerMetadata) -> list[list[str]]:
    """Return the merges that build the pieces of a vocabulary with scores, the best piece first;
    those of one piece in the order of the ids of their parts, the last first, as transformers
    does."""
    ids = {token: id for id, token in enumerate(metadata.tokens)}
    merges: list[tuple[float, int, int, str, str]] = []
    for piece, score in zip(metadata.tokens, metadata.scores, strict=True):
        found: list[tuple[int, int, str, str]] = []
        for at in range(1, len(piece)):
            left, right = piece[:at], piece[at:]
            if left in ids and right in ids:
                found.append((ids[left], ids[right], left, right))
        found.sort(reverse=True)
        merges += [(score, *each) for each in found]
    merges.sort(key=lambda merge: merge[0], reverse=True)  # stable
    return [[left, right] for *_, left, right in merges]


def _bpe(metadata: TokenizerMetadata, merges: list[list[str]], **more: Any) -> dict[str, Any]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": {token: id for id, token in enumerate(metadata.tokens)},
        "merges": merges,
        **more,
    }


def _added_tokens(metadata: TokenizerMetadata) -> list[dict[str, Any]]:
    """Return the tokens that are recognized in the text before it is split."""
    return [
        {
            "id": id,
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": type != USER_DEFINED,
        }
        for id, (token, type) in enumerate(zip(metadata.tokens, metadata.types, strict=True))
        if type in (UNKNOWN, CONTROL, USER_DEFINED)
    ]


def _post_processor(metadata: TokenizerMetadata) -> dict[str, Any] | None:
    """Return the step that puts a BOS token before a text, or None if the metadata has none."""
    wants = metadata.model in ("llama", "gemma4") or metadata.pre in WHOLE_WORDS
    bos = metadata.token("bos")
    if bos is None or not metadata.flag("add_bos_token", default=wants):
        return None
    first = {"SpecialToken": {"id": bos, "type_id": 0}}
    texts = [{"Sequence": {"id": name, "type_id": number}} for number, name in enumerate("AB")]
    return {
        "type": "TemplateProcessing",
        "single": [first, texts[0]],
        "pair": [first, *texts],
        "special_tokens": {bos: {"id": bos, "ids": [metadata.tokens.index(bos)], "tokens": [bos]}},
    }
