# pyright: basic
"""CUDA graphs: a step replays the kernels of all layers with one call, in place of launching
hundreds of them from Python, which takes longer than the kernels themselves.

A graph is captured for a number of tokens, and once more if it has rows of several tokens; a step
takes the smallest that holds it. What differs from step to step is data at fixed addresses:

    ids, positions, slots, pages   padded with tokens whose page is -1: nothing is written for them
    plan of the attention          padded with items of no tokens, and sums of no splits
    page tables                    as long as they are

Embeddings and layers are captured. Logits and draws are not: they depend on how many rows draw an
id, and how. A step that no graph holds (a long prefill, say) launches its kernels one by one.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from continuo.engine.batch import Batch
from continuo.engine.device.attention.backend import AttentionBackend, PagedAttention
from continuo.engine.device.attention.triton_backend import (
    ITEM_FIELDS,
    SUM_FIELDS,
    Plan,
    StepPlan,
    TritonAttention,
    TritonBackend,
    longest_tile,
    plan,
)
from continuo.engine.device.kv_pool import KVPool
from continuo.engine.device.model import CausalLM
from continuo.engine.device.models.attention import SelfAttention
from continuo.engine.device.models.decoder import Decoder
from continuo.engine.device.models.layers import GatedMlp
from continuo.engine.device.step_inputs import Ints, StepInputs, upload
from continuo.engine.device.step_states import PooledStates

log = logging.getLogger(__name__)

TOKENS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 448, 512)
"""Numbers of tokens for which graphs are captured. With more, launching takes less time than the
computation, to which padding adds."""
TABLE_ENTRIES_MAX = 1 << 18
"""Maximum entries of all page tables of a group: 4 Mi tokens of context in pages of 16."""
CELL_FIELD = 6
"""Field of an item that is -1 in padding, so that nothing is stored for a missing cell."""

Layers = Callable[[], tuple[Tensor, Tensor | None]]
"""Runs the layers of a step. Returns what `Decoder.run_layers` does."""
Capture = Callable[[Layers], Layers]
"""Captures a function. The result runs it again, with the same tensors."""


class CudaCapture:
    """Captures CUDA graphs, which share their memory, since they run one after another."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, layers: Layers) -> Layers:
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            output = layers()

        def replay() -> tuple[Tensor, Tensor | None]:
            graph.replay()
            return output

        return replay


@dataclass
class SplitMemory:
    """Memory of the splits of attention, which graphs share. Captured first, the largest graph
    takes as much as the others need."""

    memory: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)
    """By heads and value_dim."""

    def take(
        self, cells: int, heads: int, value_dim: int, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Return [cells, heads, value_dim] and [cells, heads]."""
        kind = heads, value_dim
        if kind not in self.memory or len(self.memory[kind][1]) < cells:
            like = torch.empty(0, dtype=torch.float32, device=device)
            partial = like.new_empty(cells, heads, value_dim)
            self.memory[kind] = partial, like.new_empty(cells, heads)
        partial, weights = self.memory[kind]
        return partial[:cells], weights[:cells]


class FixedPlan:
    """A plan of attention at fixed addresses and of fixed size, with the page tables of its
    group."""

    def __init__(
        self,
        attention: FixedAttention,
        group: int,
        window: int | None,
        heads: int,
        kv_heads: int,
        value_dim: int,
        block: int,
    ) -> None:
        """Args:
        attention: that of the graph, which gives the number of tokens and the memory of the splits.
        group: group of the layers: 0 is the full group, n is window group n - 1.
        window: positions to which a token attends. None: all.
        heads: query heads of a layer, a multiple of `kv_heads`.
        kv_heads: KV heads of a layer.
        value_dim: length of the value vector of a head.
        block: context tokens that a kernel reads at once; splits are whole blocks.
        """
        self.group, self.window, self.block = group, window, block
        self.group_size, self.kv_heads = heads // kv_heads, kv_heads
        tokens, self.programs = attention.tokens, attention.backend.programs
        device = attention.step.tokens.device
        programs = max(1, self.programs // kv_heads)
        tile = longest_tile(self.group_size)
        # Each tile has one split more than its share of the programs, at most.
        counts = [programs + tokens]
        cells = programs + tokens
        if attention.has_longer_rows:
            counts.append(programs + min(tokens, tokens // tile + tokens // 2))
            cells += tokens + tile * programs
        template = [np.zeros((count, ITEM_FIELDS), dtype=np.int32) for count in counts]
        for items in template:
            items[:, CELL_FIELD] = -1
        padding = [each.ravel() for each in template]
        padding.append(np.zeros(tokens * SUM_FIELDS, dtype=np.int32))
        self._padding = np.concatenate(padding)
        self._offsets = np.cumsum([0, *map(len, padding)])
        size = len(self._padding) + TABLE_ENTRIES_MAX
        self._memory = torch.zeros(size, dtype=torch.int32, device=device)
        upload(self._padding, device, self._memory[: len(self._padding)])
        *items, sums = self._memory[: len(self._padding)].split([len(each) for each in padding])
        partial, weights = attention.splits.take(cells, heads, value_dim, device)
        self.page_tables = self._memory[len(self._padding) :]
        tile_tokens = (1, tile)[: len(items)]
        self.step_plan = StepPlan(
            list(zip(tile_tokens, items, strict=True)), sums, partial, weights
        )

    def set_step(self, step: StepInputs) -> None:
        """Plan a step, and copy the plan and the page tables to the device."""
        made = plan(
            step,
            self.group,
            self.window,
            self.group_size,
            self.kv_heads,
            self.block,
            self.programs,
        )
        packed = np.concatenate([self._padding, *step.page_tables[self.group]], dtype=np.int32)
        for part, begin, end in zip(
            self._list_parts(made), self._offsets, self._offsets[1:], strict=False
        ):
            assert part.size <= end - begin, "the plan has no more items than were captured"
            packed[begin : begin + part.size] = part.ravel()
        upload(packed, self._memory.device, self._memory[: len(packed)])

    def _list_parts(self, made: Plan) -> Iterator[Ints]:
        for _, (_, items) in zip(self.step_plan.items, made.items, strict=False):
            yield items
        yield made.sums


class FixedAttention(TritonAttention):
    """Attention of steps of at most `tokens` tokens, whose plans are at fixed addresses."""

    def __init__(
        self,
        step: StepInputs,
        pool: KVPool,
        backend: TritonBackend,
        tokens: int,
        splits: SplitMemory,
        *,
        has_longer_rows: bool,
    ) -> None:
        """Args:
        step: padding, in the tensors that the graph reads; the inputs of each real step are copied
            there.
        pool: keys and values, at addresses that do not change.
        backend: kernels, and the number of programs that a launch needs to fill the device.
        tokens: maximum tokens of a step, for which the plans have room.
        splits: memory for partial results, shared with the graphs of other sizes: no two run at
            once.
        has_longer_rows: whether a row may have more than one token; if none has, the plans need
            fewer items.
        """
        super().__init__(step, pool, backend)
        self.tokens, self.has_longer_rows, self.splits = tokens, has_longer_rows, splits
        self.fixed: dict[tuple[int, int | None, int, int, int], FixedPlan] = {}

    def set_step(self, step: StepInputs) -> None:
        for fixed in self.fixed.values():
            fixed.set_step(step)

    def _find_plan(
        self, group: int, window: int | None, heads: int, values: Tensor, block: int
    ) -> StepPlan:
        kv_heads, _, value_dim = values.shape[1:]
        kind = group, window, heads, kv_heads, value_dim
        if kind not in self.fixed:
            self.fixed[kind] = FixedPlan(self, group, window, heads, kv_heads, value_dim, block)
        fixed = self.fixed[kind]
        self.page_tables[group] = fixed.page_tables
        return fixed.step_plan


@dataclass
class StepGraph:
    """The captured layers of a step of at most `tokens` tokens."""

    model: Decoder
    tokens: int
    inputs: Tensor
    """[3 + groups, tokens] int64: see `build_inputs`."""
    attention: FixedAttention
    replay: Layers

    def run(self, step: StepInputs) -> Tensor:
        """Run a step whose inputs are in `inputs`. Returns its logits [S, vocab]."""
        self.attention.set_step(step)
        x, addend = self.replay()
        count = int(step.row_offsets[-1])
        addend = None if addend is None else addend[:count]
        return self.model.compute_logits(x[:count], addend, step.logit_indices)


class StepGraphs:
    """The graphs of a model."""

    def __init__(self, pool: KVPool) -> None:
        self._page_size = pool.page_size
        self._graphs: dict[tuple[int, bool], StepGraph] = {}
        """By number of tokens, and whether rows may have several."""
        self._sizes: list[int] = []

    @torch.inference_mode()
    def capture(
        self,
        model: Decoder,
        pool: KVPool,
        backend: TritonBackend,
        tokens: tuple[int, ...],
        capture: Capture,
        progress: Callable[[float], None],
    ) -> None:
        """Capture graphs for these numbers of tokens."""
        splits = SplitMemory()
        sizes = [
            (each, longer) for each in sorted(tokens, reverse=True) for longer in (True, False)
        ]
        for number, (count, has_longer_rows) in enumerate(sizes):
            progress(number / len(sizes))
            if has_longer_rows and count == 1:
                continue
            inputs = torch.zeros(
                *(3 + len(pool.page_counts), count),
                dtype=torch.int64,
                device=model.embedding.device,
            )
            step = _build_padding(inputs)
            attention = FixedAttention(
                step, pool, backend, count, splits, has_longer_rows=has_longer_rows
            )
            attend = PagedAttention(step, pool, attention)
            states = PooledStates(step, pool)

            def layers(
                step: StepInputs = step,
                attend: PagedAttention = attend,
                states: PooledStates = states,
            ) -> tuple[Tensor, Tensor | None]:
                return model.run_layers(step.tokens, step.positions, attend, states)

            layers()  # what a first call compiles, allocates or plans must not be captured
            graph = StepGraph(model, count, inputs, attention, capture(layers))
            self._graphs[count, has_longer_rows] = graph
        self._sizes = sorted(tokens)

    def find(self, batch: Batch) -> StepGraph | None:
        """Return the smallest graph that holds the step, if there is one."""
        counts = [row.count for row in batch.rows]
        at = bisect_left(self._sizes, sum(counts))
        size = self._page_size
        entries = sum(-(-(row.start + row.count) // size) for row in batch.rows)
        if at == len(self._sizes) or entries > TABLE_ENTRIES_MAX:
            return None
        return self._graphs[self._sizes[at], max(counts) > 1]


def _build_padding(inputs: Tensor) -> StepInputs:
    """Build a step of padding alone. `inputs` [3 + groups, tokens] int64: the memory of its tokens,
    positions, slots and pages."""
    inputs[3:] = -1
    ids, positions, slots, *pages = inputs.unbind(0)
    none = np.zeros(0, dtype=np.int64)
    return StepInputs(
        tokens=ids,
        positions=positions,
        pages=pages,
        slots=slots,
        row_offsets=np.zeros(1, dtype=np.int64),
        starts=none,
        counts=none,
        page_tables=[[] for _ in pages],
        state_slots=None,
        logit_indices=None,
        sampled_rows=[],
        fed_tokens=[],
    )


def capture_graphs(
    model: CausalLM,
    pool: KVPool,
    backend: AttentionBackend,
    batched_tokens: int,
    progress: Callable[[str, float], None],
) -> StepGraphs | None:
    """Capture the graphs of a model on a CUDA device.

    Returns None if the model cannot be captured: experts and recurrent states are computed by
    operations whose sizes depend on the step. Returns None, too, if the memory does not hold them.
    """
    if not is_capturable(model, backend):
        return None
    assert isinstance(model, Decoder)
    assert isinstance(backend, TritonBackend)
    start_s = time.perf_counter()
    tokens = tuple(each for each in TOKENS if each <= batched_tokens)
    graphs = StepGraphs(pool)
    try:
        graphs.capture(
            model,
            pool,
            backend,
            tokens,
            CudaCapture(),
            lambda fraction: progress("capturing graphs", fraction),
        )
    except torch.OutOfMemoryError:
        log.warning("no memory for CUDA graphs: each step launches its kernels one by one")
        return None
    log.info("graphs captured in %.1f s", time.perf_counter() - start_s)
    return graphs


def is_capturable(model: CausalLM, backend: AttentionBackend) -> bool:
    return (
        isinstance(model, Decoder)
        and isinstance(backend, TritonBackend)
        and model.layer_inputs is None
        and all(
            isinstance(layer.mixer, SelfAttention)
            and isinstance(layer.mlp, GatedMlp)
            and layer.mixture_beside is None
            for layer in model.layers
        )
    )
