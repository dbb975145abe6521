"""Measure what quantization changes in an exported model folder: perplexity and greedy ids on
held-out conversations, and the error of each product.

The engine itself computes the logits, so activations are rounded as they are when it serves.
Perplexity is that of the assistant's messages; greedy agreement is the share of their tokens at
which the likeliest id is that of fp32.
"""

import argparse
import math
import random
from array import array
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoTokenizer

from continuo.engine.batch import Batch, BatchRow, SampleParams
from continuo.engine.config import EngineConfig
from continuo.engine.device.build import build_runner
from continuo.engine.device.quantization import BLOCK, MADE_FORMATS, is_quantizable, quantize
from continuo.engine.device.runner import TorchRunner
from tools.demo_model.generate import converse, mixed_plan
from tools.demo_model.template import render

ROWS = 32
"""Conversations that are computed at once."""
TOKENS_MAX = 1024
PAGE_SIZE = 16
VARIANTS: dict[str, dict[str, str]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"dtype": "float32", "quantization": "int8"},
    "int4": {"dtype": "float32", "quantization": "int4"},
}
Conversation = tuple[list[int], list[bool]]
"""Ids, and for each whether the assistant wrote it."""


def held_out_conversations(model: Path, count: int) -> list[Conversation]:
    tokenizer = AutoTokenizer.from_pretrained(model)
    source = random.Random("held out: quantization")
    made: list[Conversation] = []
    while len(made) < count:
        conversation = converse(source, mixed_plan(source), held_out=True)
        ids: list[int] = []
        learned: list[bool] = []
        for segment in render(conversation.messages, conversation.tools):
            piece = tokenizer(segment.text)["input_ids"]
            ids += piece
            learned += [segment.learned] * len(piece)
        made.append((ids[:TOKENS_MAX], learned[:TOKENS_MAX]))
    return made


def judge(runner: TorchRunner, conversations: list[Conversation]) -> tuple[Tensor, Tensor]:
    """Return, for each token of the assistant, its log-probability and the likeliest id."""
    likelihoods: list[Tensor] = []
    ids_drawn: list[Tensor] = []
    pages_each = TOKENS_MAX // PAGE_SIZE
    for first in range(0, len(conversations), ROWS):
        group = conversations[first : first + ROWS]
        for at in range(TOKENS_MAX - 1):
            live = [n for n, (ids, _) in enumerate(group) if at + 1 < len(ids)]
            if not live:
                break
            rows = [
                BatchRow(
                    array("i", [group[n][0][at]]),
                    -1,
                    at,
                    array("i", range(n * pages_each, (n + 1) * pages_each)),
                    SampleParams(),
                )
                for n in live
            ]
            logits = runner.compute_logits(Batch(at, rows)).float()
            chosen = [index for index, n in enumerate(live) if group[n][1][at + 1]]
            if chosen:
                targets = torch.tensor([group[live[index]][0][at + 1] for index in chosen])
                kept = logits[chosen]
                likelihoods.append(kept.log_softmax(-1).gather(1, targets[:, None])[:, 0])
                ids_drawn.append(kept.argmax(-1))
    return torch.cat(likelihoods), torch.cat(ids_drawn)


def product_errors(model: Path, name: str) -> list[float]:
    """Return the relative error of x W^T, in the 2-norm, for each matrix W of a checkpoint and
    normally distributed x, with both rounded."""
    errors: list[float] = []
    torch.manual_seed(0)
    for weight in load_file(model / "model.safetensors").values():
        if not is_quantizable(weight):
            continue
        weight = weight.float()
        x = torch.randn(64, weight.shape[1])
        blocks = x.unflatten(-1, (-1, BLOCK))
        scale = blocks.abs().amax(-1, keepdim=True) / 127
        rounded = ((blocks / scale).round() * scale).flatten(-2)
        exact = x @ weight.T
        made = rounded @ quantize(weight, MADE_FORMATS[name]).dequantize().T
        errors.append(((made - exact).norm() / exact.norm()).item())
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=Path("engine/bundled/demo"))
    parser.add_argument("--conversations", type=int, default=96)
    options = parser.parse_args()
    conversations = held_out_conversations(options.model, options.conversations)
    reference: Tensor | None = None
    print("| weights | perplexity | greedy ids as in fp32 | error of a product, mean (largest) |")
    print("|---|---|---|---|")
    for name, fields in VARIANTS.items():
        config = EngineConfig(
            model=str(options.model),
            device="cpu",
            block_size=PAGE_SIZE,
            num_gpu_blocks_override=ROWS * TOKENS_MAX // PAGE_SIZE,
            **fields,  # pyright: ignore[reportArgumentType]
        )
        runner, _ = build_runner(config, lambda _what, _fraction: None)
        likelihoods, drawn = judge(runner, conversations)
        reference = drawn if reference is None else reference
        agreement = (drawn == reference).float().mean().item()
        error = ""
        if name in MADE_FORMATS:
            errors = product_errors(options.model, name)
            error = f"{sum(errors) / len(errors):.1%} ({max(errors):.1%})"
        perplexity = math.exp(-likelihoods.mean().item())
        print(f"| {name} | {perplexity:.3f} | {agreement:.2%} | {error} |")
    assert reference is not None
    print(f"\n{len(reference):,} tokens of the assistant in {len(conversations)} conversations.")


if __name__ == "__main__":
    main()
