"""ModelHistory: a random history in a crowded world, on a small model of any kind of layer.

The logit of each id of an output is the largest one of one fresh prefill by transformers, but for
the error of another order of summation.
"""

from __future__ import annotations

import functools
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from continuo.engine.batch import Runner
from continuo.engine.core.speculation import PromptLookup, Speculation
from continuo.engine.wire.messages import Sampling
from tests.support import transformers_oracle as oracle
from tests.support.architectures import ARCHITECTURES
from tests.support.drafting import DRAFTS_MAX, EagerGain
from tests.support.random_history import RandomHistory
from tests.support.worlds import World, crowded_world

MODELS = (
    "Qwen3ForCausalLM",
    "Olmo3ForCausalLM",
    "GptOssForCausalLM",
    "Lfm2ForCausalLM",
    "NemotronHForCausalLM",
    "Qwen3_5ForCausalLM",
    "FalconH1ForCausalLM",
    "Mamba2ForCausalLM",
)
"""Full attention, windows, sinks and experts, convolutions, Mamba-2, the delta rule, Mamba-2 beside
attention, states alone."""
VOCABULARY = 144
CONTEXT_MAX = 1024
TOLERANCE = 2e-4
"""Relative to the largest logit, in fp32."""


class ModelHistory(RandomHistory):
    ids_max = VOCABULARY - 1
    drafted_turns = ({},)

    def __init__(
        self, world: World, source: random.Random, seed: int, device: Runner[Any], reference: Any
    ) -> None:
        """`reference`: the model of transformers."""
        self.reference = reference
        super().__init__(world, source, seed, device)

    def make_speculation(self, source: random.Random) -> Speculation:
        del source
        return Speculation(PromptLookup(1, 3), DRAFTS_MAX, EagerGain)

    def check_output(
        self, prompt: list[int], output: list[int], sampling: Sampling, seed: int
    ) -> None:
        if not output:
            return
        logits = oracle.full_logits(self.reference, prompt + output)[len(prompt) - 1 : -1]
        drawn = logits.gather(1, torch.tensor(output)[:, None])[:, 0]
        assert (logits.amax(1) - drawn).max() <= TOLERANCE * logits.abs().max()


def model_history(seed: int, name: str | None = None) -> ModelHistory:
    """Make a history on the small model of an architecture; None: of any one of MODELS."""
    source = random.Random(f"model {seed}")
    name = name or source.choice(MODELS)
    reference, folder, runs_in_c = _checkpoint(name)
    world = crowded_world(source, page_size=source.choice([1, 16, 16, 256]))
    device = oracle.build_cpu_runner(
        Path(folder.name),
        block_size=world.page_size,
        num_gpu_blocks_override=world.pages,
        max_model_len=world.session_tokens,
        max_num_batched_tokens=world.batched_tokens,
        max_num_seqs=world.rows,
        steps_ahead=0 if runs_in_c else world.ahead,
        kv_offloading_size=source.choice([0.0, 0.0002, 0.01]),
    )
    world = world._replace(failing=0.0, ahead=device.geometry.steps_ahead)
    return ModelHistory(world, source, seed, device, reference)


@functools.cache
def _checkpoint(name: str) -> tuple[Any, TemporaryDirectory[str], bool]:
    """Make the small model of an architecture. Returns it, the folder that it was saved to, and
    whether our C decoder runs it."""
    [architecture] = [each for each in ARCHITECTURES if each.name == name]
    model = architecture.make(vocab_size=VOCABULARY, max_position_embeddings=CONTEXT_MAX)
    folder = TemporaryDirectory()
    model.save_pretrained(folder.name)
    return model, folder, architecture.way == "C"
