"""Tests of the reader of GGUF files: what they say, and files that are damaged or hostile."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from continuo.engine.errors import ModelError
from continuo.engine.fingerprint import compute_fingerprint
from continuo.engine.gguf import folder as folder_module
from continuo.engine.gguf.container import open_gguf
from continuo.engine.gguf.folder import open_folder, open_text_folder
from continuo.engine.local_checkpoint import find_local_checkpoint
from continuo.engine.text import ModelText

BYTE_CHARS = [chr(each) for each in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))]
BYTE_CHARS += [chr(0x100 + n) for n in range(256 - len(BYTE_CHARS))]
TOKENS = [*BYTE_CHARS, "he", "ll", "hell", "<|im_start|>", "<|im_end|>", "<think>"]
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
METADATA: dict[str, Any] = {
    "general.architecture": "qwen2",
    "qwen2.context_length": 512,
    "qwen2.embedding_length": 32,
    "qwen2.block_count": 1,
    "qwen2.feed_forward_length": 48,
    "qwen2.attention.head_count": 2,
    "qwen2.attention.head_count_kv": 1,
    "qwen2.attention.layer_norm_rms_epsilon": 1e-5,
    "qwen2.rope.freq_base": 1e6,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": [1] * (len(TOKENS) - 3) + [3, 3, 4],
    "tokenizer.ggml.merges": ["h e", "l l", "he ll", "not there"],
    "tokenizer.ggml.eos_token_id": TOKENS.index("<|im_end|>"),
    "tokenizer.chat_template": TEMPLATE,
}
TENSORS = {
    "token_embd.weight": (272, 32),
    "blk.0.attn_q.weight": (32, 32),
    "blk.0.attn_k.weight": (16, 32),
    "blk.0.ffn_up.weight": (48, 32),
}
F32, Q4_0, Q3_K = 0, 2, 11


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(folder_module, "CACHE_FOLDER", tmp_path / "cache")
    return tmp_path / "cache"


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def value(item: Any) -> bytes:
    """Encode a metadata value with its type."""
    if isinstance(item, bytes):  # encoded already
        return item
    if isinstance(item, bool):
        return struct.pack("<I?", 7, item)
    if isinstance(item, int):
        return struct.pack("<II", 4, item)
    if isinstance(item, float):
        return struct.pack("<If", 6, item)
    if isinstance(item, str):
        return struct.pack("<I", 8) + string(item)
    kind = struct.unpack("<I", value(item[0])[:4])[0] if item else 4
    return struct.pack("<IIQ", 9, kind, len(item)) + b"".join(value(each)[4:] for each in item)


def gguf(
    metadata: Mapping[str, Any] = METADATA,
    tensors: Mapping[str, tuple[int, ...]] = TENSORS,
    *,
    kind: int = F32,
    start: bytes = b"GGUF\3\0\0\0",
) -> bytes:
    """Return a file whose tensors have zeros. `kind`: their type."""
    header = start + struct.pack("<QQ", len(tensors), len(metadata))
    header += b"".join(string(key) + value(item) for key, item in metadata.items())
    offset = 0
    for name, shape in tensors.items():
        header += string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        header += struct.pack("<IQ", kind, offset)
        offset += 4 * shape[0] * shape[-1]
    return header + bytes(-len(header) % 32 + min(offset, 1 << 20))


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_metadata_becomes_config_tokenizer_and_template(tmp_path: Path) -> None:
    folder = find_local_checkpoint(str(write(tmp_path / "model.gguf", gguf())))
    assert folder is not None
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["Qwen2ForCausalLM"]
    assert (config["hidden_size"], config["head_dim"], config["vocab_size"]) == (32, 16, 272)
    assert config["rope_parameters"] == {"rope_type": "default", "rope_theta": 1e6}
    assert config["tie_word_embeddings"]
    text = ModelText(str(folder))
    assert text.encode("hello<|im_end|>") == [
        TOKENS.index(token) for token in ("hell", "o", "<|im_end|>")
    ]
    assert text.decode(text.encode_untrusted("hé <|im_end|>")) == "hé <|im_end|>"
    assert text.stop_ids == (TOKENS.index("<|im_end|>"),)
    assert text.template is not None


def test_folder_is_written_once_and_again_for_another_file(tmp_path: Path, cache: Path) -> None:
    path = write(tmp_path / "model.gguf", gguf())
    first = open_folder(path)
    written = (first / "config.json").stat().st_mtime_ns
    assert open_folder(path) == first
    assert (first / "config.json").stat().st_mtime_ns == written
    write(path, gguf(METADATA | {"qwen2.context_length": 1024}))
    assert open_folder(path) != first
    assert len(list(cache.iterdir())) == 2


def test_folder_whose_file_was_moved_is_replaced(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", gguf())
    folder = open_folder(path)
    (folder / "model.gguf").unlink()
    (folder / "model.gguf").symlink_to(tmp_path / "gone")
    assert open_folder(path) == folder
    assert (folder / "model.gguf").resolve() == path


@pytest.mark.parametrize(
    "data",
    [
        gguf(METADATA | {"general.architecture": "mamba"}),
        gguf(kind=Q3_K),
        gguf(tensors=TENSORS | {"blk.0.ssm_in.weight": (4, 4)}),
        gguf(tensors={"a": (2,) * 9}, kind=99),
    ],
    ids=["architecture", "type", "tensor", "all"],
)
def test_text_is_read_of_any_architecture(data: bytes, tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", data)
    with pytest.raises(ModelError):
        open_folder(path)
    folder = open_text_folder(path)
    assert ModelText(str(folder)).encode("hello") == [TOKENS.index("hell"), TOKENS.index("o")]
    assert len(compute_fingerprint(str(folder))) == 16
    written = (folder / "config.json").stat().st_mtime_ns
    assert open_text_folder(path) == folder
    assert (folder / "config.json").stat().st_mtime_ns == written


def test_text_folder_of_a_file_that_our_engine_reads_is_its_folder(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf", gguf())
    assert open_text_folder(path) == open_folder(path)


def test_text_needs_a_known_tokenizer(tmp_path: Path) -> None:
    metadata = METADATA | {"general.architecture": "mamba", "tokenizer.ggml.model": "bert"}
    path = write(tmp_path / "model.gguf", gguf(metadata))
    with pytest.raises(ModelError, match="tokenizer 'bert' is not supported"):
        open_text_folder(path)


def test_fingerprint_depends_on_the_weights_and_not_on_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = gguf()
    (tmp_path / "other").mkdir()
    paths = [write(tmp_path / name, data) for name in ("a.gguf", "other/b.gguf")]
    changed = write(tmp_path / "c.gguf", data[:-5000] + b"\1" + data[-4999:])
    for whole_bytes_max in (1 << 20, 0):
        monkeypatch.setattr("continuo.engine.fingerprint.WHOLE_BYTES_MAX", whole_bytes_max)
        first, second, third = (
            compute_fingerprint(str(open_folder(path))) for path in (*paths, changed)
        )
        assert first == second
        assert first != third


def test_cache_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "occupied", b"")
    monkeypatch.setattr(folder_module, "CACHE_FOLDER", tmp_path / "occupied" / "gguf")
    with pytest.raises(ModelError, match=r"occupied.*XDG_CACHE_HOME moves this folder"):
        open_folder(write(tmp_path / "model.gguf", gguf()))


@pytest.mark.parametrize(
    ("name", "tokens", "text", "expected"),
    [
        ("llama", ["▁he", "llo", "▁", "h", "e", "l", "o"], "hello", ["▁he", "llo"]),
        ("no prefix", ["he", "llo", "▁", "h", "e", "l", "o"], "hello", ["he", "llo"]),
        ("bytes", ["▁", "h", "e", "l", "o"], "é", ["▁", "<0xC3>", "<0xA9>"]),
    ],
)
def test_vocabulary_with_scores(
    name: str, tokens: list[str], text: str, expected: list[str], tmp_path: Path
) -> None:
    parts = ["ll", "▁h", "he"]
    all_tokens = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256))]
    all_tokens += dict.fromkeys([*tokens, *parts])
    metadata = {key: item for key, item in METADATA.items() if "token" not in key} | {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": all_tokens,
        "tokenizer.ggml.scores": [-float(len(token) == 1) for token in all_tokens],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * (len(all_tokens) - 259),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_space_prefix": name != "no prefix",
    }
    tensors = TENSORS | {"token_embd.weight": (288, 32)}
    folder = open_folder(write(tmp_path / "model.gguf", gguf(metadata, tensors)))
    model = ModelText(str(folder))
    assert model.encode(text) == [all_tokens.index(token) for token in expected]
    assert model.decode(model.encode(text)) == text
    assert (model.bos_ids, model.stop_ids) == ((1,), (2,))


def changed(**differences: Any) -> bytes:
    """Return a file with other metadata: __ stands for a dot, None removes a key."""
    metadata = METADATA | {key.replace("__", "."): item for key, item in differences.items()}
    return gguf({key: item for key, item in metadata.items() if item is not None})


HUGE = struct.pack("<Q", 1 << 60)
DEFECTS: dict[str, tuple[bytes, str]] = {
    "not GGUF": (b"PK\3\4" + bytes(100), "not a GGUF file"),
    "empty": (b"", "not a GGUF file"),
    "version 1": (gguf(start=b"GGUF\1\0\0\0"), "GGUF version 1; versions 2 and 3"),
    "big-endian": (gguf(start=b"GGUF\0\0\0\3"), "GGUF version 50331648"),
    "many tensors": (b"GGUF\3\0\0\0" + HUGE + HUGE, "tensors; the limit is 65,536"),
    "many keys": (b"GGUF\3\0\0\0" + bytes(8) + HUGE, "metadata keys; the limit is 65,536"),
    "long name": (b"GGUF\3\0\0\0" + struct.pack("<QQ", 0, 1) + HUGE, "a string of 1,152,9"),
    "long text": (changed(general__name=struct.pack("<I", 8) + HUGE), "a string of 1,152,9"),
    "long list": (changed(x=struct.pack("<II", 9, 8) + HUGE), "items of x; the limit is 4,194,304"),
    "long numbers": (
        changed(x=struct.pack("<II", 9, 10) + HUGE),
        "items of x; the limit is 4,194,304",
    ),
    "nested list": (changed(x=struct.pack("<IIQ", 9, 9, 1)), "x is an array of type 9"),
    "unknown type": (changed(x=struct.pack("<I", 77)), "metadata x is of unknown type 77"),
    "not UTF-8": (changed(x=struct.pack("<IQ", 8, 1) + b"\xff"), "is not UTF-8"),
    "alignment": (changed(general__alignment=0), "alignment 0 is not 1 to 65536"),
    "large tensor": (gguf(tensors=TENSORS | {"a": (1 << 40, 32)}), "tensor a ends at byte"),
    "dimensions": (gguf(tensors={"a": (2,) * 9}), "9 dimensions of tensor a; the limit is 4"),
    "no size": (gguf(tensors={"a": (4, 0)}), "tensor a has sizes"),
    "part of a block": (gguf(tensors={"a": (4, 48)}, kind=Q4_0), "which Q4_0 cannot have"),
    "blocks of a vector": (gguf(tensors={"a": (64,)}, kind=Q4_0), "which Q4_0 cannot have"),
    "other type": (gguf(kind=Q3_K), "tensor token_embd.weight is Q3_K; supported are F32, F16"),
    "no architecture": (changed(general__architecture=None), "general.architecture is missing"),
    "architecture": (
        changed(general__architecture="mamba"),
        "architecture mamba is not supported in GGUF; supported are llama, qwen2, qwen3, gemma3",
    ),
    "tensor": (gguf(tensors=TENSORS | {"blk.0.ssm_in.weight": (4, 4)}), "a qwen2 with a tensor"),
    "no tensor": (
        gguf(tensors={name: TENSORS[name] for name in TENSORS if "ffn_up" not in name}),
        "blk.0.ffn_up.weight is missing",
    ),
    "shape": (
        changed(qwen2__feed_forward_length=64),
        "but the metadata (feed_forward_length) requires [64, 32]",
    ),
    "layers": (
        changed(qwen2__block_count=1 << 30),
        "block_count is 1,073,741,824, but 1 layers have tensors",
    ),
    "more layers": (
        gguf(tensors=TENSORS | {"blk.1.attn_q.weight": (32, 32)}),
        "block_count is 1, but 2 layers have tensors",
    ),
    "rope factors": (
        gguf(tensors=TENSORS | {"rope_freqs.weight": (8,)}),
        "a qwen2 with a tensor rope_freqs.weight",
    ),
    "context": (changed(qwen2__context_length=1 << 31), "the limit is 16,777,216"),
    "no heads": (changed(qwen2__attention__head_count=0), "qwen2.attention.head_count is 0"),
    "text for a number": (changed(qwen2__context_length="x"), "context_length is 'x'"),
    "heads by layer": (changed(qwen2__attention__head_count=[2, 1]), "head_count is [2, 1]"),
    "partial rotation": (changed(qwen2__rope__dimension_count=8), "rope.dimension_count is 8, but"),
    "experts": (changed(qwen2__expert_count=8), "expert_count is 8, which is not"),
    "epsilon": (
        changed(qwen2__attention__layer_norm_rms_epsilon=-1.0),
        "qwen2.attention.layer_norm_rms_epsilon is -1; it must be at least 0 and at most 1",
    ),
    "base of frequencies": (
        changed(qwen2__rope__freq_base=0.0),
        "qwen2.rope.freq_base is 0; it must be more than 0",
    ),
    "no base": (changed(qwen2__rope__freq_base=float("nan")), "freq_base is nan, which is not"),
    "infinite factor": (
        changed(qwen2__rope__scaling__type="yarn", qwen2__rope__scaling__factor=float("inf")),
        "qwen2.rope.scaling.factor is inf, which is not finite",
    ),
    "rope scaling": (
        changed(qwen2__rope__scaling__type="longrope"),
        "rope.scaling.type 'longrope'",
    ),
    "attention factor": (
        changed(qwen2__rope__scaling__attn_factor=0.5),
        "qwen2.rope.scaling.attn_factor is 0.5, which is not supported",
    ),
    "bidirectional": (
        changed(qwen2__attention__causal=False),
        "qwen2.attention.causal is False, which is not supported",
    ),
    "layers for further tokens": (
        changed(qwen2__nextn_predict_layers=1),
        "qwen2.nextn_predict_layers is 1, which is not supported",
    ),
    "other heads with a window": (
        changed(qwen2__attention__key_length_swa=8),
        "attention.key_length_swa is 8, but the length of a key is 16",
    ),
    "tokenizer": (changed(tokenizer__ggml__model="bert"), "tokenizer 'bert' is not supported"),
    "pre-tokenizer": (changed(tokenizer__ggml__pre="glm4"), "pre-tokenizer 'glm4' is not"),
    "equal tokens": (changed(tokenizer__ggml__tokens=["a", "a"]), "tokens has equal tokens"),
    "token types": (changed(tokenizer__ggml__token_type=[1]), "1 tokenizer.ggml.token_type for"),
    "tokens": (changed(tokenizer__ggml__tokens=7), "tokens is not of type list"),
    "token of a role": (changed(tokenizer__ggml__eos_token_id=9999), "eos_token_id is 9999"),
    "template": (changed(tokenizer__chat_template=7), "chat_template is not of type str"),
    "nested tokenizer": (
        changed(tokenizer__huggingface__json="[" * 200_000),
        "huggingface.json is not JSON: it is nested too deeply",
    ),
    "tokenizer nested less deeply": (
        changed(tokenizer__huggingface__json='{"a":' * 900 + "0" + "}" * 900),
        "it is nested too deeply; the limit is 64 levels",
    ),
    "tokenizer of another kind": (
        changed(tokenizer__huggingface__json="[]"),
        "huggingface.json is not a JSON object",
    ),
    "whole tokenizer": (changed(tokenizer__huggingface__json="{"), "huggingface.json is not JSON"),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_defect_is_named(name: str, tmp_path: Path) -> None:
    data, message = DEFECTS[name]
    path = write(tmp_path / "model.gguf", data)
    with pytest.raises(ModelError) as error:
        open_folder(path)
    assert message in error.value.message
    assert str(path) in error.value.message


GEMMA = {key.replace("qwen2.", "gemma3."): item for key, item in METADATA.items()} | {
    "general.architecture": "gemma3",
    "gemma3.attention.sliding_window": 20,
    "gemma3.block_count": 6,
}
GEMMA_TENSORS = TENSORS | {f"blk.{layer}.attn_q.weight": (32, 32) for layer in range(6)}


def build_gemma(path: Path, **metadata: Any) -> dict[str, Any]:
    """Return the config of a Gemma 3 of six layers with further keys: __ stands for a dot."""
    more = {f"gemma3.{key.replace('__', '.')}": item for key, item in metadata.items()}
    folder = open_folder(write(path / "model.gguf", gguf(GEMMA | more, GEMMA_TENSORS)))
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(
    ("pattern", "without_window"),
    [
        (6, [5]),
        (2, [1, 3, 5]),
        (1, [0, 1, 2, 3, 4, 5]),
        (0, []),
        ([True, False, True, True, True, False], [1, 5]),
    ],
)
def test_pattern_says_which_layers_have_a_window(
    pattern: Any, without_window: list[int], tmp_path: Path
) -> None:
    types = build_gemma(tmp_path, attention__sliding_window_pattern=pattern)["layer_types"]
    assert [n for n, kind in enumerate(types) if kind == "full_attention"] == without_window
    assert set(types) <= {"full_attention", "sliding_attention"}


@pytest.mark.parametrize("pattern", [[True, False], True, "2"])
def test_pattern_of_another_kind_is_refused(pattern: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"sliding_window_pattern is .* for 6 layers"):
        build_gemma(tmp_path, attention__sliding_window_pattern=pattern)


def test_scaling_of_gemma_is_that_of_the_layers_without_a_window(tmp_path: Path) -> None:
    rope = build_gemma(tmp_path, rope__scaling__type="yarn", rope__scaling__factor=4.0)
    assert rope["rope_parameters"] == {
        "full_attention": {
            "rope_type": "yarn",
            "rope_theta": 1e6,
            "factor": 4.0,
            "original_max_position_embeddings": 512,
        },
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }


@pytest.mark.parametrize(
    ("kind", "scaling"),
    [
        (None, {"rope_type": "linear", "factor": 2.0}),
        ("none", {"rope_type": "default"}),
    ],
)
def test_factor_without_a_type_is_linear(
    kind: str | None, scaling: dict[str, Any], tmp_path: Path
) -> None:
    data = changed(qwen2__rope__scaling__factor=2.0, qwen2__rope__scaling__type=kind)
    folder = open_folder(write(tmp_path / "model.gguf", data))
    config = json.loads((folder / "config.json").read_text())
    assert config["rope_parameters"] == scaling | {"rope_theta": 1e6}


def test_factors_of_frequencies_beside_a_scaling_are_refused(tmp_path: Path) -> None:
    metadata = {key.replace("qwen2.", "llama."): item for key, item in METADATA.items()} | {
        "general.architecture": "llama",
        "llama.rope.scaling.factor": 2.0,
    }
    data = gguf(metadata, TENSORS | {"rope_freqs.weight": (8,)})
    with pytest.raises(ModelError, match=r"rope\.scaling\.type beside the tensor rope_freqs"):
        open_folder(write(tmp_path / "model.gguf", data))


def test_unknown_key_is_named_in_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    open_folder(write(tmp_path / "model.gguf", changed(qwen2__attention__gain=3.0)))
    [message] = [record.getMessage() for record in caplog.records]
    assert message.endswith("has the metadata attention.gain; they have no effect")


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such folder"):
        find_local_checkpoint(str(tmp_path / "missing.gguf"))


@pytest.mark.long
def test_damaged_header_raises_nothing_but_a_model_error(tmp_path: Path) -> None:
    """Files that end early or have other bytes anywhere before the tensors."""
    source, good = random.Random(5), gguf()
    path = tmp_path / "model.gguf"
    header = open_gguf(write(path, good)).header_bytes
    refused = 0
    for _ in range(300):
        data = bytearray(good)
        if source.random() < 0.2:
            del data[source.randrange(header) :]
        for _ in range(source.randint(1, 3)):
            data[source.randrange(min(len(data), header) or 1) - 1] = source.randrange(256)
        try:
            open_folder(write(path, bytes(data)))
        except ModelError:
            refused += 1
    assert 50 < refused < 300
