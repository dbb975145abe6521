"""Training of the demo model from scratch within a given time, however busy the machine is.

Every schedule is a function of the share of the given time that has passed. Training therefore
always ends on time, with a learning rate of 0. A checkpoint is written every few minutes.
"""

import argparse
import os
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, distributed, multiprocessing, nn
from torch.nn import functional
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tools.demo_model.generate import Plan, converse, copy_plan, mixed_plan, short_plan
from tools.demo_model.model import Decoder
from tools.demo_model.template import render

LENGTH_MAX = 2048
COPYING_UNTIL = 0.06
SHORT_UNTIL = 0.22
DECAY_FROM = 0.45
CHECKPOINT_EVERY_S = 180.0


@dataclass(frozen=True)
class Row:
    """Conversation as ids, and for each id whether the model learns to output it."""

    ids: list[int]
    learned: list[bool]


def plan_at(share: float, rng: random.Random) -> Plan:
    """Draw the plan of a training conversation when `share` of the training time has passed."""
    if share < COPYING_UNTIL:
        return copy_plan(rng)
    if share < SHORT_UNTIL:
        return short_plan(rng)
    return mixed_plan(rng)


def rate_at(share: float, step: int) -> float:
    """Return the factor on the learning rates: a warm-up of 40 steps, a plateau, and a linear decay
    to 0 once `share` exceeds DECAY_FROM."""
    rise = min(1.0, (step + 1) / 40)
    return rise * min(1.0, (1.0 - share) / (1.0 - DECAY_FROM))


class Rows:
    """Source of batches of about ``tokens`` ids, each of conversations of similar length."""

    ROUND = 32

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: str, tokens: int) -> None:
        self.tokenizer = tokenizer
        self.rng = random.Random(f"train {seed}")
        self.tokens = tokens

    def _row(self, share: float) -> Row:
        conversation = converse(self.rng, plan_at(share, self.rng))
        ids: list[int] = []
        learned: list[bool] = []
        segments = render(conversation.messages, conversation.tools)
        encoded = self.tokenizer([segment.text for segment in segments], verbose=False)["input_ids"]
        for segment, piece in zip(segments, encoded, strict=True):
            ids.extend(piece)
            learned.extend([segment.learned] * len(piece))
        return Row(ids[:LENGTH_MAX], learned[:LENGTH_MAX])

    def batches(self, share: float) -> list[list[Row]]:
        """Make ``ROUND`` batches for the time when `share` of the training time (0 to 1) has
        passed, ordered from short rows to long ones.

        Until COPYING_UNTIL, while the model learns to copy, batches have half as many ids.
        """
        tokens = self.tokens // 2 if share < COPYING_UNTIL else self.tokens
        batches: list[list[Row]] = []
        while len(batches) < self.ROUND:
            rows: list[Row] = []
            size = 0
            while size < 1.2 * self.ROUND * tokens:
                rows.append(self._row(share))
                size += len(rows[-1].ids)
            batches = self._batched(rows, tokens)
        kept = sorted(self.rng.sample(range(len(batches)), self.ROUND))
        return [batches[index] for index in kept]

    def _batched(self, rows: list[Row], tokens: int) -> list[list[Row]]:
        rows.sort(key=lambda row: len(row.ids))
        batches: list[list[Row]] = [[]]
        for row in rows:
            if batches[-1] and (len(batches[-1]) + 1) * len(row.ids) > tokens:
                batches.append([])
            batches[-1].append(row)
        return batches


def tensors(rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
    """Convert rows to tensors: the ids [rows, length], the indices into the flattened ids whose
    next id is learnt, and those next ids."""
    length = max(len(row.ids) for row in rows)
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    places: list[int] = []
    targets: list[int] = []
    for index, row in enumerate(rows):
        ids[index, : len(row.ids)] = torch.tensor(row.ids)
        for at in range(1, len(row.ids)):
            if row.learned[at]:
                places.append(index * length + at - 1)
                targets.append(row.ids[at])
    return ids, torch.tensor(places), torch.tensor(targets)


class Workers:
    """The `count` training processes, which exchange tensors, as seen by the one of rank `rank`."""

    def __init__(self, rank: int, count: int) -> None:
        self.rank = rank
        self.count = count
        if count > 1:
            distributed.init_process_group("gloo", rank=rank, world_size=count)

    def sum(self, values: Tensor) -> None:
        """Replace `values` by their sum over all workers."""
        if self.count > 1:
            distributed.all_reduce(values)

    def share(self, values: Tensor) -> Tensor:
        """Return the part of a stack of matrices that this worker computes.

        The stack is padded, so that all parts have equal size.
        """
        missing = -len(values) % self.count
        return functional.pad(values, (0, 0, 0, 0, 0, missing)).chunk(self.count)[self.rank]

    def gather(self, part: Tensor) -> Tensor:
        """Collect the parts of all workers (see `share`), and return the whole stack, with its
        padding."""
        if self.count == 1:
            return part
        parts = [torch.empty_like(part) for _ in range(self.count)]
        distributed.all_gather(parts, part.contiguous())
        return torch.cat(parts)


class Muon:
    """Muon optimizer: momentum whose update is made orthogonal by Newton-Schulz iterations.

    Matrices of equal shape are updated together, as a stack. Each worker computes its part of every
    stack.
    """

    def __init__(self, weights: Sequence[nn.Parameter], rate: float, workers: Workers) -> None:
        shapes: dict[torch.Size, list[nn.Parameter]] = {}
        for weight in weights:
            shapes.setdefault(weight.shape, []).append(weight)
        self.groups = list(shapes.values())
        self.momenta = [torch.zeros(len(group), *group[0].shape) for group in self.groups]
        self.rate = rate
        self.workers = workers

    @torch.no_grad()
    def step(self, factor: float) -> None:
        """Update the weights at ``factor`` times the learning rate, and clear the gradients."""
        for group, momentum in zip(self.groups, self.momenta, strict=True):
            gradient = torch.stack([weight.grad for weight in group if weight.grad is not None])
            momentum.lerp_(gradient, 0.05)
            part = self.workers.share(gradient.lerp_(momentum, 0.95))
            update = self.workers.gather(_orthogonal(part).float())
            size = max(1.0, update.shape[1] / update.shape[2]) ** 0.5
            for weight, change in zip(group, update, strict=False):
                weight.mul_(1 - 0.01 * self.rate * factor)
                weight.add_(change, alpha=-self.rate * factor * size)
                weight.grad = None


def _orthogonal(x: Tensor) -> Tensor:
    """Approximate the nearest orthogonal matrices. `x` is [count, rows, columns]."""
    wide = x.shape[1] <= x.shape[2]
    y = (x if wide else x.mT).bfloat16()
    y = y / (y.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        a = y @ y.mT
        y = 3.4445 * y + (-4.7750 * a + 2.0315 * (a @ a)) @ y
    return y if wide else y.mT


class Trainer:
    """Training in one worker: the model, its two optimizers, and the time that has passed."""

    def __init__(
        self, model: Decoder, rows: Rows, workers: Workers, seconds: float, out: Path
    ) -> None:
        self.model = model
        self.rows = rows
        self.workers = workers
        self.seconds = seconds
        self.out = out
        self.weights = list(model.parameters())
        matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
        others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
        self.muon = Muon(matrices, 0.02, workers)
        self.adam = torch.optim.AdamW(others, lr=3e-3, betas=(0.9, 0.98), weight_decay=0.0)
        self.began = time.monotonic()
        self.saved = self.started = self.began
        self.passed = 0.0
        self.steps = 0
        self.seen = 0.0

    def run(self, start: float) -> None:
        """Train until the time is up. The share ``start`` of the time counts as passed already."""
        self.began -= start * self.seconds
        self.passed = start
        recent = 0.0
        order = random.Random("order")
        while True:
            batches = self.rows.batches(self.passed)
            for index in order.sample(range(len(batches)), len(batches)):
                if self.passed >= 1.0:
                    self.save()
                    return
                loss = self._step(batches[index])
                recent = loss if self.steps == 1 else 0.98 * recent + 0.02 * loss
                if self.steps % 50 == 0:
                    self._report(recent)
                if time.monotonic() - self.saved > CHECKPOINT_EVERY_S:
                    self.save()

    def _report(self, loss: float) -> None:
        if self.workers.rank == 0:
            speed = self.seen / (time.monotonic() - self.started)
            told = f"{self.passed:6.1%} step {self.steps} tokens {self.seen:.0f} loss {loss:.4f}"
            print(f"{told} ({speed:.0f} tokens/s)", flush=True)

    def _step(self, batch: Sequence[Row]) -> float:
        """Run a training step on this worker's batch together with those of all other workers.

        Returns the mean loss over the learnt ids of all batches.
        """
        ids, places, targets = tensors(batch)
        with torch.autocast("cpu", torch.bfloat16):
            loss = self.model(ids, places, targets)
        loss.backward()
        passed = (time.monotonic() - self.began) / self.seconds
        facts = torch.tensor([float(loss.detach()), len(targets), passed, ids.numel()])
        gradients = [weight.grad for weight in self.weights if weight.grad is not None]
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), facts])
        self.workers.sum(flat)
        total, count, passed, size = flat[-4:].tolist()
        parts = (flat[:-4] / count).split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))
        factor = rate_at(self.passed, self.steps)
        for group in self.adam.param_groups:
            group["lr"] = 3e-3 * factor
        self.adam.step()
        self.adam.zero_grad()
        self.muon.step(factor)
        self.passed = passed / self.workers.count
        self.steps += 1
        self.seen += size
        return total / count

    def save(self) -> None:
        """Write the weights to a file, atomically. Only the worker of rank 0 writes."""
        self.saved = time.monotonic()
        if self.workers.rank == 0:
            partial = self.out.with_suffix(".part")
            torch.save(self.model.state_dict(), partial)
            partial.replace(self.out)


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read the weights of a checkpoint, or those of an exported model folder, which are rounded to
    bfloat16."""
    if not path.is_dir():
        return torch.load(path)
    exported = load_file(path / "model.safetensors")
    return {name.removeprefix("model."): weight.float() for name, weight in exported.items()}


def _work(rank: int, options: argparse.Namespace) -> None:
    """Run the worker of this rank until training ends."""
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    workers = Workers(rank, options.workers)
    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer)
    model = Decoder(len(tokenizer))
    if options.resume:
        model.load_state_dict(read_weights(options.resume))
    if rank == 0:
        print(f"{sum(weight.numel() for weight in model.parameters())} parameters", flush=True)
    rows = Rows(tokenizer, f"{options.seed} {rank}", options.tokens // options.workers)
    trainer = Trainer(model, rows, workers, options.minutes * 60, options.out)
    trainer.run(options.start)


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and train, with one process per worker."""
    parser = argparse.ArgumentParser(description="Train the demo model within a given time.")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of the tokenizer")
    parser.add_argument("--out", type=Path, required=True, help="checkpoint file to write")
    parser.add_argument("--minutes", type=float, default=60.0, help="time to train (default 60)")
    parser.add_argument("--resume", type=Path, help="checkpoint or model folder to go on from")
    parser.add_argument(
        "--start", type=float, default=0.0, help="share of the time that counts as passed"
    )
    parser.add_argument("--workers", type=int, default=2, help="processes, 1 or 2 (default 2)")
    parser.add_argument("--tokens", type=int, default=4096, help="ids per step (default 4096)")
    parser.add_argument("--seed", type=int, default=0, help="seed (default 0)")
    options = parser.parse_args(arguments)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    if options.workers == 1:
        _work(0, options)
    else:
        multiprocessing.spawn(_work, (options,), nprocs=options.workers)


if __name__ == "__main__":
    main()
