"""The sizes of the KV pools, on the device and in the host tier, from the bytes that the layers of
a model take for a session. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from continuo.engine.batch import WindowGroup
from continuo.engine.byte_units import format_bytes
from continuo.engine.config import EngineConfig
from continuo.engine.errors import ModelError

OTHERS_FRACTION = 0.5
"""Share of the memory that windows and states may take from a model that also has full layers."""
SESSION_TOKENS = 8_192
"""Tokens of a session for which windows are no scarcer than the full layers, where there is memory
for more sessions than --max-num-seqs."""
STEP_SLOTS, MARK_SLOTS = 3, 6
"""State slots of a running sequence: its state and those that two steps in flight write; and those
of its marks."""
FREE_PAGES_MAX = 65_536
"""Pages of a full group without layers, which take no device memory; more only if one session needs
more."""


@dataclass(frozen=True)
class SessionMemory:
    """Bytes that the layers of a model take for a session."""

    token_bytes: Mapping[int | None, int]
    """Bytes of the keys and values of a token in all layers with one attention window, in tokens;
    None: in those that attend to everything."""
    state_bytes: int = 0
    """Bytes of a recurrent state, in all layers."""


@dataclass(frozen=True)
class MemoryPlan:
    """Sizes of all pools, in pages and slots."""

    pages: int
    max_model_len: int
    host_pages: int = 0
    windows: tuple[WindowGroup, ...] = ()
    state_slots: int = 0
    host_state_slots: int = 0
    state_bytes: int = 0
    """Bytes of one state slot."""
    has_full_layers: bool = True

    def count_sessions(self, tokens: int, page_size: int) -> int:
        """Count the sessions of `tokens` tokens of which the device holds all KV, states and marks
        at the same time."""
        pages = _count_pages(tokens, page_size)
        counts = [self.pages // pages] if self.has_full_layers else []
        for group in self.windows:
            counts.append(group.pages // min(pages, _window_pages(group.window, page_size)))
        if self.state_slots:
            counts.append(self.state_slots // (STEP_SLOTS + MARK_SLOTS))
        return min(counts)


def plan_memory(
    config: EngineConfig,
    memory: SessionMemory,
    limit: int,
    default_pool_bytes: int,
    batched_tokens: int,
) -> MemoryPlan:
    """Share out the memory of the device and of the host among the layers. `limit`: the longest
    context of the model, in tokens; `default_pool_bytes`: size of a pool whose size is not
    configured; `batched_tokens`: the most tokens of one step.

    A layer whose window is not shorter than the longest session counts as a full layer. Raises
    ModelError as `size_pool` does.
    """
    longest = _longest_session(config, limit)
    windows = sorted(window for window in memory.token_bytes if window and window < longest)
    full = [size for window, size in memory.token_bytes.items() if window not in windows]
    token_bytes = sum(full)
    if not windows and not memory.state_bytes:
        pages, length = size_pool(config, token_bytes, limit, default_pool_bytes)
        return MemoryPlan(pages, length, count_host_pages(config, token_bytes))
    page = config.block_size
    costs = {window: page * memory.token_bytes[window] for window in windows}
    costs[STATE] = memory.state_bytes
    shares = _share_out(
        config, costs, page * token_bytes, longest, default_pool_bytes, batched_tokens
    )
    spent = sum(costs[kind] * count for kind, count in shares.items())
    if full:
        pages, length = size_pool(config, token_bytes, limit, default_pool_bytes, spent)
    else:
        session = _count_pages(longest, page) + 1
        pages, length = max(session, min(FREE_PAGES_MAX, session * config.max_num_seqs)), longest
    plan = MemoryPlan(
        pages,
        length,
        windows=tuple(WindowGroup(w, shares[w]) for w in windows),
        state_slots=shares[STATE],
        state_bytes=costs[STATE],
        has_full_layers=bool(full),
    )
    return _with_host_tier(plan, config, costs, pages * page * token_bytes + spent)


STATE = 0
"""Stands for the state in a table of windows."""


def _share_out(
    config: EngineConfig,
    costs: dict[int, int],
    full_cost: int,
    longest: int,
    default_pool_bytes: int,
    batched_tokens: int,
) -> dict[int, int]:
    """Count the pages of each window and the state slots. `costs`: bytes of each; `full_cost`:
    bytes of a page of the full layers; 0: there are none."""
    alone = not full_cost
    page, rows = config.block_size, config.max_num_seqs
    step = _count_pages(2 * batched_tokens, page) + 1
    session = _count_pages(longest, page) + 1
    least: dict[int, int] = {}
    wanted: dict[int, int] = {}
    for kind, cost in costs.items():
        if kind == STATE:
            least[kind] = STEP_SLOTS + 1 if cost else 0
            wanted[kind] = rows * (STEP_SLOTS + MARK_SLOTS) if cost else 0
        else:
            pages = _window_pages(kind, page)
            least[kind] = min(pages + 2, session)
            wanted[kind] = rows * session if alone else min(2 * rows * pages + step, rows * session)
    if config.num_gpu_blocks_override is not None:
        wanted = {
            kind: count if kind == STATE else min(count, config.num_gpu_blocks_override)
            for kind, count in wanted.items()
        }
        for kind, count in least.items():
            if kind != STATE and count > config.num_gpu_blocks_override:
                raise ModelError(
                    f"a KV pool of {config.num_gpu_blocks_override} pages of {page} tokens does "
                    f"not hold a window of {kind} tokens"
                )
    budget = _budget_bytes(config, default_pool_bytes)
    available = default_pool_bytes if budget is None else budget
    if full_cost and budget is not None and not costs[STATE]:
        windows = {kind: _window_pages(kind, page) for kind in wanted if kind != STATE}
        sessions = _count_even_sessions(costs, full_cost, windows, available, longest, page)
        for kind, pages in windows.items():
            wanted[kind] = max(wanted[kind], min(sessions * pages, rows * session))
    available = int(available * (1.0 if alone else OTHERS_FRACTION))
    total = sum(costs[kind] * count for kind, count in wanted.items())
    scale = min(1.0, available / max(total, 1))
    shares = {kind: max(least[kind], int(count * scale)) for kind, count in wanted.items()}
    needed = sum(costs[kind] * count for kind, count in least.items())
    if budget is not None and needed > budget:
        raise ModelError(
            f"the KV pool has {format_bytes(budget)}; the windows and states of one session of "
            f"max_model_len {longest} need {format_bytes(needed)}: set kv_cache_memory_bytes"
        )
    return shares


def _count_even_sessions(
    costs: dict[int, int],
    full_cost: int,
    windows: dict[int, int],
    available: int,
    longest: int,
    page: int,
) -> int:
    """Count the sessions of SESSION_TOKENS tokens that fit if no kind of page is scarcer than
    another. `windows`: pages of a session in each window."""
    full_pages = _count_pages(min(SESSION_TOKENS, longest), page)
    windows_bytes = sum(costs[kind] * min(pages, full_pages) for kind, pages in windows.items())
    return available // (full_cost * full_pages + windows_bytes)


def _budget_bytes(config: EngineConfig, default_pool_bytes: int) -> int | None:
    """Return the bytes for all pools; None if the number of pages is configured instead."""
    if config.num_gpu_blocks_override is not None:
        return None
    if config.kv_cache_memory_bytes is not None:
        return config.kv_cache_memory_bytes
    return default_pool_bytes


def _with_host_tier(
    plan: MemoryPlan, config: EngineConfig, costs: dict[int, int], device_bytes: int
) -> MemoryPlan:
    """Share out the host tier in the proportions of the device."""
    scale = _host_bytes(config) / max(device_bytes, 1)
    host_pages = int(plan.pages * scale) if plan.has_full_layers else plan.pages
    return replace(
        plan,
        host_pages=host_pages if scale else 0,
        windows=tuple(WindowGroup(x.window, x.pages, int(x.pages * scale)) for x in plan.windows),
        host_state_slots=int(plan.state_slots * scale) if costs[STATE] else 0,
    )


def count_host_pages(config: EngineConfig, token_bytes: int) -> int:
    """Count the pages of a host tier of `kv_offloading_size` GiB. Raises ModelError if the size is
    negative."""
    return _host_bytes(config) // (token_bytes * config.block_size)


def _host_bytes(config: EngineConfig) -> int:
    if config.kv_offloading_size < 0:
        raise ModelError(
            f"kv_offloading_size is {config.kv_offloading_size}; it must be at least 0"
        )
    return int(config.kv_offloading_size * (1 << 30))


def size_pool(
    config: EngineConfig,
    token_bytes: int,
    limit: int,
    default_pool_bytes: int,
    others_bytes: int = 0,
) -> tuple[int, int]:
    """Choose (number of device pages, max_model_len). `limit`: the longest context of the model, in
    tokens; `default_pool_bytes`: as in `plan_memory`; `others_bytes`: memory of windows and states.

    The pool always holds at least one session of max_model_len tokens. If `max_model_len` is
    configured, a pool of default size grows until it holds such a session. Otherwise max_model_len
    is `limit`, or the number of tokens in the pool if that is less.

    Raises ModelError if `max_model_len` exceeds `limit`, or if a pool of configured size is too
    small.
    """
    requested, longest = config.max_model_len, _longest_session(config, limit)
    page = config.block_size
    if config.num_gpu_blocks_override is not None:
        pages = config.num_gpu_blocks_override
    elif config.kv_cache_memory_bytes is not None:
        pages = max(config.kv_cache_memory_bytes - others_bytes, 0) // (token_bytes * page)
    else:
        useful = _count_pages(longest, page) * config.max_num_seqs
        available = max(default_pool_bytes - others_bytes, 0)
        pages = min(useful, available // (token_bytes * page))
        pages = max(pages, _count_pages(requested or 1, page))
    if pages < 1 or (requested is not None and pages < _count_pages(requested, page)):
        raise ModelError(
            f"a KV pool of {pages} pages of {page} tokens ({token_bytes} bytes each) "
            f"does not hold one session of max_model_len {requested or 1}"
        )
    return pages, min(longest, pages * page)


def _longest_session(config: EngineConfig, limit: int) -> int:
    requested = config.max_model_len
    if requested is not None and requested > limit:
        raise ModelError(f"max_model_len {requested} is more than the model's {limit} tokens")
    return requested or limit


def _count_pages(tokens: int, page_size: int) -> int:
    return -(-tokens // page_size)


def _window_pages(window: int, page_size: int) -> int:
    """Return the number of pages that the tokens in a window may lie in."""
    return _count_pages(window, page_size) + 1
