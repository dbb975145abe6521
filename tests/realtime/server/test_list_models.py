"""Tests of `continuo models`: models with their memory, and whether they fit; and families."""

from pathlib import Path

import pytest

from continuo.engine import (
    BUNDLED_MODEL,
    KNOWN_ARCHITECTURES,
    ModelSize,
    find_local_checkpoint,
    read_model_size,
    suggest_models,
)
from continuo.realtime.errors import SetupError
from continuo.realtime.server.list_models import (
    ListedModel,
    describe_families,
    describe_models,
    find_model,
    print_models,
)

GIB = 1 << 30
SUGGESTED = suggest_models()


PARAMETERS = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M-Instruct": 361_821_120,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1_711_376_384,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B-Instruct-2507": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
}
"""Numbers of parameters that the hub states."""


def test_parameters_of_suggested_models_are_those_of_the_hub() -> None:
    assert {name: size.parameters for name, size in SUGGESTED.items()} == PARAMETERS
    assert list(SUGGESTED) == sorted(SUGGESTED, key=lambda name: PARAMETERS[name])


def test_bf16_model_takes_two_bytes_a_weight_and_less_quantized() -> None:
    size = SUGGESTED["Qwen/Qwen3-0.6B"]
    model = ListedModel("x", size)
    assert model.weights_bytes("bfloat16") == 2 * size.parameters
    assert model.weights_bytes("float32") == 4 * size.parameters
    embedding, norms = 151936 * 1024, 28 * (2 * 1024 + 2 * 128) + 1024
    matrices = size.parameters - embedding - norms
    # The head, which is tied, is quantized as well, and the embedding stays.
    for form, bits in (("int8", 8.5), ("int4", 4.5)):
        in_blocks = int((matrices + embedding) * bits / 8)
        assert model.weights_bytes(form) == 2 * (embedding + norms) + in_blocks


@pytest.mark.parametrize(
    ("memory_gib", "choices"),
    [
        (1, ["no"] * 8),
        (4, ["bf16", "bf16", "bf16", "int8", "int8", "int8", "no", "no"]),
        (3, ["bf16"] * 3 + ["int4"] * 3 + ["no"] * 2),
        (8, ["bf16"] * 6 + ["int8", "int4"]),
        (24, ["bf16"] * 8),
        (None, ["bf16"] * 8),
    ],
)
def test_most_precise_format_that_fits_is_named(memory_gib: int | None, choices: list[str]) -> None:
    memory = None if memory_gib is None else memory_gib * GIB
    found = [ListedModel(name, size).choose(memory)[0] for name, size in SUGGESTED.items()]
    assert found == choices


def test_rows_have_kv_and_the_sessions_that_fit() -> None:
    name = "HuggingFaceTB/SmolLM2-135M-Instruct"
    _, row = describe_models([ListedModel(name, SUGGESTED[name])], 16 * GIB)
    kv = 30 * 2 * 3 * 64 * 2
    tokens = GIB // (16 * kv) * 16
    assert row.split() == [
        *(name, "135", "M", "513", "MiB", "257", "MiB", "190", "MiB", "126", "MiB"),
        *(f"{kv / 1024:.1f}", "KiB", f"{tokens:,}", str(tokens // 4096), "bf16"),
    ]


def test_model_larger_than_the_memory_has_no_pool() -> None:
    [_, row] = describe_models([ListedModel("x", SUGGESTED["Qwen/Qwen3-8B"])], 4 * GIB)
    assert row.split()[-3:] == ["-", "-", "no"]


def bundled_size() -> ModelSize:
    folder = find_local_checkpoint(BUNDLED_MODEL)
    assert folder is not None
    size = read_model_size(folder)
    assert size is not None
    return size


def test_gguf_file_is_listed_with_its_own_size() -> None:
    model = ListedModel("x.gguf", bundled_size(), file_bytes=3 * GIB)
    _, row = describe_models([model], 8 * GIB)
    assert row.split()[:7] == ["x.gguf", "2.3", "M", "-", "-", "-", "-"]
    assert model.choose(8 * GIB)[0] == "yes"
    assert model.choose(4 * GIB)[0] == "no"


def test_model_given_by_name_is_found_on_this_machine(tmp_path: Path) -> None:
    assert find_model(BUNDLED_MODEL).size == bundled_size()
    assert find_model("Qwen/Qwen3-0.6B").size == SUGGESTED["Qwen/Qwen3-0.6B"]
    assert "config.json is missing" in find_model(str(tmp_path)).note
    with pytest.raises(SetupError, match="no such folder"):
        find_model("./nowhere")


def test_given_models_are_printed_without_the_families(capsys: pytest.CaptureFixture[str]) -> None:
    print_models([BUNDLED_MODEL])
    heading, row, *rest = capsys.readouterr().out.splitlines()
    assert heading.split()[0] == "weights"
    assert row.split()[0] == BUNDLED_MODEL
    assert not any("Families" in line for line in rest)


@pytest.mark.parametrize("width", [60, 100])
def test_families_are_listed_by_what_runs_them_and_by_the_reason_of_a_refusal(width: int) -> None:
    lines = list(describe_families(width))
    assert all(len(line) <= width for line in lines)
    text = " ".join(line.strip() for line in lines)
    native, _, rest = text.partition("Families that run through transformers")
    slower, _, refused = rest.partition("Families that are refused:")
    for each in KNOWN_ARCHITECTURES:
        place = {"transformers": slower, "refused": refused}.get(each.way, native)
        assert each.models in place
        assert each.reason in place
