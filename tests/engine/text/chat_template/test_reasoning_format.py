"""The tokens around the reasoning of a model, as found from its chat template."""

import logging
from pathlib import Path

import pytest

from continuo.engine.text import ModelText
from continuo.engine.text.output_channels import ReasoningFormat
from tests.support.checkpoints import (
    CHATML_TOKENS,
    byte_level_tokenizer,
    family_folder,
    family_template,
    write_checkpoint,
)
from tests.support.reasoning_outputs import REASONING_FAMILIES, markup_around

PLAIN = """{%- for message in messages -%}
<|im_start|>{{ message.role }}
REASONING{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif -%}"""
BY_TOKENS = "{% if message.reasoning_content %}<hm>{{ message.reasoning_content }}</hm>{% endif %}"
BY_LABEL = BY_TOKENS.replace("<hm>", "<hm>musing\n")
BY_WORDS = BY_TOKENS.replace("<hm>", "Thought: ").replace("</hm>", " So: ")
BY_MESSAGES = (
    "{% if message.reasoning_content %}{{ message.reasoning_content }}<|im_end|>\n"
    "<|im_start|>assistant\n{% endif %}"
)


def text_of(folder: Path, reasoning: str) -> ModelText:
    """Make a model with the added tokens <hm> and </hm>, whose template renders reasoning so."""
    tokenizer = byte_level_tokenizer(CHATML_TOKENS, ["<hm>", "</hm>"])
    source = PLAIN.replace("REASONING", reasoning)
    return ModelText(str(write_checkpoint(folder, tokenizer, source, eos_token="<|im_end|>")))


@pytest.mark.parametrize(
    ("reasoning", "expected"),
    [
        (BY_TOKENS, ReasoningFormat("<hm>", "</hm>")),
        (BY_LABEL, ReasoningFormat("<hm>", "</hm>", "musing\n")),
        (BY_WORDS, None),
        (BY_MESSAGES, None),
        ("", None),
    ],
    ids=["tokens", "tokens and a label", "words", "messages", "none"],
)
def test_format_is_found_from_the_template(
    tmp_path: Path, reasoning: str, expected: ReasoningFormat | None
) -> None:
    text = text_of(tmp_path, reasoning)
    assert text.template is not None
    assert text.template.reasoning_format == expected
    decoder = text.create_output_decoder()
    spoken = "".join(
        segment.text
        for segment in decoder.push(text.encode("<hm>musing\nlong</hm>Yes"))
        if segment.channel.kind == "text"
    )
    assert ("long" in spoken) == (expected is None)


@pytest.mark.long
@pytest.mark.parametrize("name", REASONING_FAMILIES)
def test_format_of_every_family_is_found(name: str) -> None:
    found = family_template(name).reasoning_format
    assert found is not None
    before, after = markup_around(name)
    assert before.strip() in ("", f"{found.begin}{found.label}".strip())
    assert after.strip().startswith(found.end)


@pytest.mark.long
@pytest.mark.parametrize(
    ("folder", "has_warning"),
    [("granite3_3", True), ("ministral3_reasoning", False), ("mistral_nemo", False)],
)
def test_reasoning_that_is_not_separated_is_logged(
    folder: str, has_warning: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Granite 3.3 writes <think> in letters."""
    template = ModelText(str(family_folder(folder))).template
    assert template is not None
    with caplog.at_level(logging.WARNING):
        template.prepare()
    assert [record.name for record in caplog.records] == (
        ["continuo.engine.text.chat_template.template"] if has_warning else []
    )
