"""GGUF files of small models that differ in one metadata key, and what becomes of each: the
log-probabilities of llama.cpp, with effect or without, or a refusal."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from continuo.engine.errors import ModelError
from tests.support import transformers_oracle as oracle
from tests.support.gguf_files import write_gguf
from tests.support.processes import ROOT

LLAMA_VENV = ROOT / ".venv-llama"
"""Environment with tests/parity/requirements.txt."""
TOLERANCES = {"llama": 2e-4, "qwen2": 2e-4, "qwen3": 2e-4, "gemma3": 2e-3}
"""By architecture: the allowed difference of a log-probability, relative to the largest. llama.cpp
takes the GELU of Gemma from a table in fp16."""
Outcome = Literal["applied", "without effect", "refused", "llama.cpp fails", "WRONG"]
"""The outcome of a change. "refused": by our engine, whatever llama.cpp does. "WRONG": other
log-probabilities than those of llama.cpp."""
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {}),
    "gemma3": (
        "Gemma3Text",
        {"num_hidden_layers": 7, "sliding_window": 20, "query_pre_attn_scalar": 16},
    ),
}
"""By architecture: the model of transformers, and how its config differs from the small one."""
LENGTHS = (1, 30, 50)
[IDS] = oracle.random_prompts(1, [50], oracle.NATIVE_SIZES["vocab_size"])

LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 3.0}
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16,
}
NONE = {"rope.scaling.type": "none", "rope.scaling.factor": 3.0}
BESIDE: dict[str, dict[str, Any]] = {"": {}, "linear": LINEAR, "yarn": YARN, "none": NONE}
"""Other keys, beside which a key is changed."""


class Change(NamedTuple):
    key: str
    """Without the architecture."""
    value: Any
    """None removes the key. A list is repeated to have a value for each layer."""
    beside: str = ""

    def __str__(self) -> str:
        return f"{self.key} {json.dumps(self.value)} {self.beside}".strip()


VALUES: dict[str, tuple[Any, ...]] = {
    "attention.causal": (True, False),
    "attention.head_count": (2, [4, 2, 4]),
    "attention.head_count_kv": (None, 1, 4, [2], [2, 1, 2]),
    "attention.key_length": (None, 8, 32),
    "attention.key_length_swa": (8, 16),
    "attention.layer_norm_rms_epsilon": (None, 0.3, -1.0),
    "attention.scale": (0.0, 0.9),
    "attention.sliding_window": (None, 0, 12, 400),
    "attention.sliding_window_pattern": (0, 1, 2, 3, 6, [True, False, True, True]),
    "attention.value_length": (None, 8, 32),
    "attention.value_length_swa": (8, 16),
    "block_count": (2, 4),
    "classifier.activation": ("tanh",),
    "classifier.output_labels": (["a"],),
    "classifier.pooling_type": (1,),
    "context_length": (1024,),
    "embedding_length": (32, 128),
    "embedding_length_out": (32,),
    "expert_count": (0, 4),
    "expert_group_count": (0, 2),
    "expert_group_used_count": (2,),
    "expert_used_count": (0, 2),
    "feed_forward_length": (48, [96], [96, 48, 96]),
    "final_logit_softcapping": (0.0, 1.0),
    "nextn_predict_layers": (0, 1),
    "pooling_type": (0, 1, 2, 3, 4),
    "rope.dimension_count": (None, 8),
    "rope.dimension_count_swa": (8, 16),
    "rope.dimension_sections": ([4],),
    "rope.freq_base": (None, 100.0, 0.0),
    "rope.freq_base_swa": (100.0, 0.0),
    "rope.scale_linear": (3.0, 1.0, 0.0),
    "rope.scaling.attn_factor": (0.5, 1.0),
    "rope.scaling.factor": (2.0, 0.0),
    "rope.scaling.type": ("none", "linear", "yarn", "longrope", "unheard-of"),
}
"""Values of the keys that llama.cpp reads in these architectures."""
_ROTARY: dict[str, tuple[Any, ...]] = {
    "rope.scale_linear": (5.0,),
    "rope.scaling.attn_factor": (0.5,),
    "rope.scaling.factor": (None, 2.0, 0.0),
    "rope.scaling.original_context_length": (None, 32),
    "rope.scaling.type": (None, "none", "linear", "yarn"),
}
VALUES_BESIDE: dict[str, dict[str, tuple[Any, ...]]] = {
    "": VALUES,
    "linear": _ROTARY,
    "none": _ROTARY,
    "yarn": {
        **_ROTARY,
        "context_length": (1024,),
        "rope.scaling.alpha": (4.0,),
        "rope.scaling.finetuned": (True,),
        "rope.scaling.yarn_attn_factor": (0.5,),
        "rope.scaling.yarn_beta_fast": (4.0,),
        "rope.scaling.yarn_beta_slow": (2.0,),
        "rope.scaling.yarn_ext_factor": (0.0, 0.5),
        "rope.scaling.yarn_log_multiplier": (0.1,),
    },
}
CHANGES = [
    Change(key, value, beside)
    for beside, by_key in VALUES_BESIDE.items()
    for key, values in by_key.items()
    for value in values
]
GUESSES: tuple[Any, ...] = (2, 0.37, True, "gelu", [1, 0, 1])
"""Values of any other key of llama.cpp."""
SIZES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("attention.head_count", {"num_attention_heads": 2}),
    ("attention.head_count_kv", {"num_key_value_heads": 4}),
    ("attention.key_length", {"head_dim": 32}),
    ("block_count", {"num_hidden_layers": 2}),
    ("embedding_length", {"hidden_size": 32}),
    ("feed_forward_length", {"intermediate_size": 64}),
)
"""Keys of sizes, which are changed together with the tensors: differences of the config."""


class LlamaCpp:
    """The process of `tests.support.llama_cpp_logprobs`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [LLAMA_VENV / "bin/python", "-m", "tests.support.llama_cpp_logprobs"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.keys: list[str] = self._read()

    def _read(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def compute(self, path: Path) -> Tensor | None:
        """Return log-probabilities [prompts, vocab], or None if llama.cpp fails with the file, or
        computes none that are finite."""
        prompts = [IDS[:length] for length in LENGTHS]
        line = json.dumps([str(path), oracle.NATIVE_SIZES["vocab_size"], prompts])
        assert self._process.stdin is not None
        print(line, file=self._process.stdin, flush=True)
        found = self._read()
        if found is None or any(None in row for row in found):
            return None
        return torch.tensor(found)

    def close(self) -> None:
        self._process.communicate()


def list_guesses(keys: list[str]) -> list[list[Change]]:
    """Return changes of the other keys, those of one value together. `keys`: all of llama.cpp."""
    others = [key for key in keys if key not in {change.key for change in CHANGES}]
    return [[Change(key, guess) for key in others] for guess in GUESSES]


class Trial:
    """Files of one architecture."""

    def __init__(self, architecture: str, folder: Path, llama: LlamaCpp) -> None:
        self._architecture, self._folder, self._llama = architecture, folder, llama
        self._unchanged: dict[str, Tensor] = {}
        self.refusal = ""
        """Why our engine has refused a file, if it has."""
        self._make({})

    def _make(self, differences: dict[str, Any]) -> None:
        kind, own = KINDS[self._architecture]
        differences = oracle.NATIVE_SIZES | own | differences
        model = oracle.small_model(kind, **differences)
        model.save_pretrained(self._folder)
        self._layers = model.config.num_hidden_layers

    def try_change(self, change: Change) -> Outcome:
        unchanged = self._compute_unchanged(change.beside)
        self._write(BESIDE[change.beside] | {change.key: change.value})
        return self._compare(unchanged)

    def try_together(self, changes: list[Change]) -> Iterator[tuple[Change, Outcome]]:
        """Try changes of which few have an effect: all at once, then halves of them."""
        unchanged = self._compute_unchanged("")
        self._write({change.key: change.value for change in changes})
        outcome = self._compare(unchanged)
        if outcome == "without effect" or len(changes) == 1:
            for change in changes:
                yield change, outcome
            return
        middle = len(changes) // 2
        for half in (changes[:middle], changes[middle:]):
            yield from self.try_together(half)

    def try_size(self, differences: dict[str, Any]) -> Outcome:
        """Try a model whose config differs."""
        unchanged = self._compute_unchanged("")
        self._make(differences)
        self._write({})
        outcome = self._compare(unchanged)
        self._make({})
        return outcome

    def _write(self, keys: dict[str, Any]) -> None:
        metadata: dict[str, Any] = {}
        for key, value in keys.items():
            if isinstance(value, list):
                value = [value[layer % len(value)] for layer in range(self._layers)]
            metadata[f"{self._architecture}.{key}"] = value
        write_gguf(self._folder, self._folder / "model.gguf", metadata=metadata)

    def _compute_unchanged(self, beside: str) -> Tensor:
        if beside not in self._unchanged:
            self._write(BESIDE[beside])
            found = self._llama.compute(self._folder / "model.gguf")
            assert found is not None
            self._unchanged[beside] = found
        return self._unchanged[beside]

    def _compare(self, unchanged: Tensor) -> Outcome:
        """Return the outcome of the file. `unchanged`: the log-probabilities of llama.cpp without
        the change."""
        expected = self._llama.compute(self._folder / "model.gguf")
        try:
            found = self._compute_ours()
        except ModelError as error:
            self.refusal = error.message
            return "refused"
        if expected is None:
            return "llama.cpp fails"
        if not self._is_equal(found, expected):
            return "WRONG"
        return "without effect" if self._is_equal(expected, unchanged) else "applied"

    def _compute_ours(self) -> Tensor:
        """Return the log-probabilities of our engine. Raises ModelError if it refuses the file."""
        runner = oracle.build_cpu_runner(self._folder / "model.gguf", max_model_len=128)
        return oracle.chunk_end_logits(runner, IDS, LENGTHS[:-1]).log_softmax(-1)

    def _is_equal(self, found: Tensor, expected: Tensor) -> bool:
        allowed = TOLERANCES[self._architecture] * expected.abs().max()
        return bool((found - expected).abs().max() <= allowed)
