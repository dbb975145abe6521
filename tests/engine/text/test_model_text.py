"""Tests of ModelText: encoding, template, stop ids, and errors of broken checkpoints."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from continuo.engine.errors import ModelError
from continuo.engine.text import ModelText
from tests.support.checkpoints import (
    byte_level_tokenizer,
    family_folder,
    family_text,
    write_checkpoint,
)


def test_encode_and_decode_round_trip() -> None:
    text = family_text("chatml")
    ids = text.encode("Hello, wörld 😀")
    assert text.decode(ids) == "Hello, wörld 😀"
    assert all(0 <= id < text.vocab_size for id in ids)
    assert max(text.encode("<|im_end|>")) == text.vocab_size - 1


def test_encode_adds_no_special_tokens(tmp_path: Path) -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = byte_level_tokenizer(["<s>"])
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", pair=None, special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    text = ModelText(str(write_checkpoint(tmp_path, tokenizer)))
    assert text.encode("") == []
    assert text.decode(text.encode("a")) == "a"
    assert len(text.encode("a")) == 1


def test_base_model_has_no_template(tmp_path: Path) -> None:
    text = ModelText(str(write_checkpoint(tmp_path, byte_level_tokenizer([]))))
    assert text.template is None
    assert text.stop_ids == ()


def test_template_is_read_from_the_tokenizer_config(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer(["<|im_start|>", "<|im_end|>"])
    source = (family_folder("chatml") / "chat_template.jinja").read_text()
    named = [{"name": "tool_use", "template": "x"}, {"name": "default", "template": source}]
    for place in (source, named):
        folder = write_checkpoint(tmp_path, tokenizer, chat_template=place)
        template = ModelText(str(folder)).template
        assert template is not None
        assert template.encode_header("user")


def test_stop_ids_are_collected_from_all_config_files(tmp_path: Path) -> None:
    folder = write_checkpoint(
        tmp_path, byte_level_tokenizer(["<a>", "<b>", "<c>"]), eos_token="<c>"
    )
    a, b, c = (family_ids for family_ids in ModelText(str(folder)).encode("<a><b><c>"))
    (folder / "config.json").write_text(json.dumps({"eos_token_id": b}))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [a, b]}))
    assert ModelText(str(folder)).stop_ids == (a, b, c)


def test_untrusted_text_cannot_encode_a_control_token_of_the_model(tmp_path: Path) -> None:
    """<s> is an ordinary piece of this Unigram model; untrusted text still cannot encode it."""
    pieces = [("<unk>", 0.0), ("<s>", -1.0), ("a", -2.0), ("<", -9.0), ("s", -9.0), (">", -9.0)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0, byte_fallback=False))
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken("<s>", normalized=False)])
    text = ModelText(str(write_checkpoint(tmp_path, tokenizer)))
    bos = text.encode("<s>")
    assert text.encode("a<s>a") == [2, *bos, 2]
    assert bos[0] not in text.encode_untrusted("a<s>a")
    assert text.decode(text.encode_untrusted("a<s>a")) == "a<s>a"


BROKEN = {
    "no folder": (lambda folder: folder / "nowhere", "no such folder"),
    "no tokenizer": (lambda folder: folder, "tokenizer.json is missing"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_missing_file_is_named_in_the_error(case: str, tmp_path: Path) -> None:
    place, message = BROKEN[case]
    with pytest.raises(ModelError, match=message) as caught:
        ModelText(str(place(tmp_path)))
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("tokenizer.json", "{", "tokenizer.json: broken"),
        ("tokenizer.json", "", "tokenizer.json: broken"),
        ("tokenizer_config.json", "{", "tokenizer_config.json: cannot be read as JSON"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json: not a JSON object"),
        ("generation_config.json", "nonsense", "generation_config.json: cannot be read as JSON"),
        ("chat_template.jinja", "{% if %}", "chat template: "),
        ("chat_template.jinja", b"\xff", "chat_template.jinja: not readable"),
    ],
)
def test_broken_file_is_named_in_the_error(
    name: str, content: str | bytes, message: str, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path, byte_level_tokenizer([]), "{{ messages }}")
    data = content.encode() if isinstance(content, str) else content
    (folder / name).write_bytes(data)
    with pytest.raises(ModelError, match=message) as caught:
        ModelText(str(folder))
    assert "\n" not in caught.value.message


@pytest.mark.process
def test_loading_model_text_imports_no_heavy_packages() -> None:
    """The gateway must start fast and stay small, so torch and transformers are not imported."""
    program = (
        "import sys; from continuo.engine.text import ModelText; "
        f"ModelText({str(family_folder('qwen3'))!r});"
        "print([name for name in ('torch', 'transformers', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
