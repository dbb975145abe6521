# pyright: basic
"""Recurrent layers: their state after p tokens and n new tokens give the state after p + n.

    run_rows        applies a recurrence to the rows of a step: single tokens of many rows together,
                    longer rows one by one
    convolve        a causal convolution by channel; its state is the last inputs
    delta_rule      the gated delta rule (Yang et al. 2024), token by token or in chunks
    selective_scan  the state space model of Mamba-2 (Dao and Gu 2024), likewise

All of them start from an explicit state and return the next one. Nothing is overwritten.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

Recurrence = Callable[..., tuple[Tensor, ...]]
"""(inputs [n, C, …], *state [n, …]) -> (outputs [n, C, …], *state [n, …]): advances n sequences by
C tokens each."""

CHUNK_TOKENS = 64
"""Tokens of a chunk that are computed together, by matrix products."""


def run_rows(
    advance: Recurrence, row_offsets: Sequence[int], inputs: Tensor, state: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Advance the rows of a step: inputs [T, …], state [R, …] for each tensor -> outputs [T, …] and
    the next state."""
    counts = [end - begin for begin, end in pairwise(row_offsets)]
    if all(count == 1 for count in counts):
        outputs, *after = advance(inputs[:, None], *state)
        return outputs[:, 0], *after
    after = [torch.empty_like(each) for each in state]
    outputs = None
    for rows in _group_rows(counts):
        tokens = torch.tensor(
            [t for row in rows for t in range(row_offsets[row], row_offsets[row + 1])],
            device=inputs.device,
        )
        index = torch.tensor(rows, device=inputs.device)
        batch = inputs[tokens].view(len(rows), -1, *inputs.shape[1:])
        found, *parts = advance(batch, *(each[index] for each in state))
        if outputs is None:
            outputs = found.new_empty(len(inputs), *found.shape[2:])
        outputs[tokens] = found.flatten(0, 1)
        for whole, part in zip(after, parts, strict=True):
            whole[index] = part.to(whole.dtype)
    assert outputs is not None, "a step has no rows"
    return outputs, *after


def _group_rows(counts: list[int]) -> list[list[int]]:
    """Group the rows: all with one token together, every longer one alone."""
    single = [row for row, count in enumerate(counts) if count == 1]
    longer = [[row] for row, count in enumerate(counts) if count > 1]
    return [single, *longer] if single else longer


def convolve(x: Tensor, past: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Convolve causally by channel: x [n, C, channels], past [n, K - 1, channels], which are the
    inputs before x, weight [K, channels] -> outputs [n, C, channels], and the last K - 1 inputs."""
    count = x.shape[1]
    inputs = torch.cat((past.to(x.dtype), x), 1)
    outputs = torch.zeros_like(x) if bias is None else bias.expand_as(x).clone()
    for tap in range(len(weight)):
        outputs += inputs[:, tap : tap + count] * weight[tap]
    return outputs, inputs[:, count:]


def delta_rule(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, rate: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Apply the gated delta rule to each of H heads:

        S ← exp(decay) S;   S ← S + rate · k (v - kᵀ S);   output = qᵀ S

    query, key [n, H, C, K], value [n, H, C, V], decay (≤ 0) and rate [n, H, C], state S [n, H, K,
    V], all fp32 -> outputs [n, H, C, V], and the next state.
    """
    if query.shape[2] == 1:
        state = state * decay[..., None].exp()
        error = value - key @ state
        state = state + key.transpose(-1, -2) @ (error * rate[..., None])
        return query @ state, state
    outputs = []
    for begin in range(0, query.shape[2], CHUNK_TOKENS):
        chunk = slice(begin, begin + CHUNK_TOKENS)
        parts = (x[:, :, chunk] for x in (query, key, value, decay, rate))
        output, state = _delta_rule_chunk(*parts, state=state)
        outputs.append(output)
    return torch.cat(outputs, 2), state


def _delta_rule_chunk(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, rate: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Apply the rule to a chunk of C tokens. The value that token i adds, u_i, depends on those of
    earlier tokens of the chunk:

        u_i = rate_i (v_i - exp(d_i) k_iᵀ S - Σ_{j<i} exp(d_i - d_j) (k_i·k_j) u_j)

    where d is the cumulative sum of `decay`: a triangular system for all of them."""
    total = decay.cumsum(-1)
    lower = torch.ones(query.shape[2], query.shape[2], device=query.device).tril().bool()
    between = (total[..., :, None] - total[..., None, :]).masked_fill(~lower, -torch.inf).exp()
    from_start = total.exp()[..., None]
    system = (key @ key.transpose(-1, -2)) * between * rate[..., None]
    known = rate[..., None] * (value - from_start * (key @ state))
    added = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)
    output = from_start * (query @ state) + ((query @ key.transpose(-1, -2)) * between) @ added
    to_end = (total[..., -1:] - total).exp()[..., None]
    state = total[..., -1:, None].exp() * state + (key * to_end).transpose(-1, -2) @ added
    return output, state


def selective_scan(
    x: Tensor, time_step: Tensor, rate: Tensor, b: Tensor, c: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Run the state space model of each of H heads:

        S ← exp(time_step · rate) S + time_step · x bᵀ;   output = S c

    x [n, H, C, P], time_step [n, H, C], rate (< 0) [H], b, c [n, H, C, N], state S [n, H, P, N],
    all fp32 -> outputs [n, H, C, P], and the next state.
    """
    decay = time_step * rate[:, None]
    x = x * time_step[..., None]
    if x.shape[2] == 1:
        state = decay.exp()[..., None] * state + x.transpose(-1, -2) @ b
        return c @ state.transpose(-1, -2), state
    outputs = []
    for begin in range(0, x.shape[2], CHUNK_TOKENS):
        chunk = slice(begin, begin + CHUNK_TOKENS)
        parts = (part[:, :, chunk] for part in (x, decay, b, c))
        output, state = _scan_chunk(*parts, state=state)
        outputs.append(output)
    return torch.cat(outputs, 2), state


def _scan_chunk(
    x: Tensor, decay: Tensor, b: Tensor, c: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Run the model on a chunk of C tokens: output_i = exp(d_i) S c_i + Σ_{j≤i} exp(d_i - d_j)
    (c_i·b_j) x_j, where d is the cumulative sum of `decay`."""
    total = decay.cumsum(-1)
    lower = torch.ones(x.shape[2], x.shape[2], device=x.device).tril().bool()
    between = (total[..., :, None] - total[..., None, :]).masked_fill(~lower, -torch.inf).exp()
    output = ((c @ b.transpose(-1, -2)) * between) @ x
    output = output + total.exp()[..., None] * (c @ state.transpose(-1, -2))
    to_end = (total[..., -1:] - total).exp()[..., None]
    state = total[..., -1:, None].exp() * state + (x * to_end).transpose(-1, -2) @ b
    return output, state
