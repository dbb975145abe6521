"""Loads on an engine core with a null device, measured in exact counts: steps, and tokens computed
over tokens needed. The tests of the scheduler and `continuo bench scheduling` run the same ones."""

import random
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from continuo import engine
from continuo.bench.null_device import NullRunner
from continuo.engine.batch import Batch, BatchResult, Geometry, RowResult, Runner
from continuo.engine.config import BUNDLED_MODEL, EngineConfig
from continuo.engine.core.loop import PreparedStep
from continuo.engine.sampling import Sampling
from continuo.engine.server.assembly import assemble
from continuo.engine.text import ModelText
from continuo.engine.wire.messages import (
    AppendIds,
    CancelTurn,
    CommandRefused,
    Generate,
    OpenSession,
    TurnEnded,
    TurnTokens,
)

PAGE_SIZE = 16
VOCABULARY = 97
STOP_ID = 5
STEPS_MAX = 100_000
TEXT = ModelText(str(Path(engine.__file__).parent / "bundled" / BUNDLED_MODEL))

RunnerFactory = Callable[[Geometry], Runner[BatchResult]]


def pages_for(tokens: int) -> int:
    return -(-tokens // PAGE_SIZE)


def prompt_ids(length: int, seed: int) -> list[int]:
    source = random.Random(seed)
    return [source.randrange(10, VOCABULARY) for _ in range(length)]


class StoppingRunner(NullRunner):
    """A null device that draws STOP_ID as soon as a sequence has `length` ids."""

    def __init__(self, geometry: Geometry, length: int) -> None:
        super().__init__(geometry)
        self._length = length

    def launch(self, batch: Batch) -> BatchResult:
        results = super().launch(batch).results
        for n, row in enumerate(batch.rows):
            if row.sample is not None and row.start + row.count >= self._length:
                results[n] = RowResult(STOP_ID)
        return BatchResult(results, 0.0)


class LoadedEngine:
    """An engine core on a null device. A test begins turns and runs steps; the counts of steps and
    tokens are exact. Steps are launched as by the engine loop: `ahead` of them before the result of
    the first is known."""

    def __init__(
        self,
        *,
        pages: int = 20_000,
        rows: int = 64,
        batched_tokens: int = 512,
        host_pages: int = 0,
        max_group_share: float = 1.0,
        ahead: int = 0,
        make_runner: RunnerFactory = NullRunner,
        audit: bool = False,
    ) -> None:
        length_max = pages * PAGE_SIZE
        geometry = Geometry(
            pages, PAGE_SIZE, length_max, VOCABULARY, batched_tokens, ahead, host_pages
        )
        self.runner = make_runner(geometry)
        config = EngineConfig(max_num_seqs=rows, max_group_share=max_group_share)
        self.core = assemble(self.runner, TEXT, config)
        self.counters = self.core.loop._counters  # noqa: SLF001
        self.steps = 0
        """Steps launched."""
        self.step_s = 0.0
        """Seconds that the device reports for a step."""
        self.first_id_steps: dict[str, int] = {}
        """For each turn, the steps from its begin to its first id."""
        self.gaps: dict[str, int] = {}
        """For each turn, the most steps between two of its ids."""
        self.outputs: dict[str, list[int]] = {}
        self.ended: dict[str, TurnEnded] = {}
        self.ended_steps: dict[str, int] = {}
        self.prompts: dict[str, list[int]] = {}
        self._scopes: dict[str, str] = {}
        self._last_id_steps: dict[str, int] = {}
        self._begun_steps: dict[str, int] = {}
        self._ahead = ahead
        self._audit = audit
        self._in_flight: deque[tuple[PreparedStep, BatchResult]] = deque()

    def begin(
        self,
        name: str,
        prompt: list[int],
        outputs: int | None,
        *,
        scope: str = "",
        group: str = "",
        weight: float = 1.0,
        **scheduling: Any,
    ) -> None:
        """Open a session, append its prompt, and begin a turn of `outputs` ids. `scheduling`:
        further fields of Sampling."""
        self.append(name, prompt, scope=scope, group=group, weight=weight)
        self.generate(name, outputs, **scheduling)

    def append(
        self, name: str, prompt: list[int], *, scope: str = "", group: str = "", weight: float = 1.0
    ) -> None:
        """Open a session, and append its prompt."""
        opened = OpenSession(0, name, scope=scope, group=group, weight=weight)
        self.core.sessions.apply(opened)
        self.prompts[name], self._scopes[name] = prompt, scope
        self.outputs[name] = []
        self.core.sessions.apply(AppendIds(0, name, prompt))
        self._take_events()

    def generate(self, name: str, outputs: int | None, **scheduling: Any) -> None:
        """Begin a turn of `outputs` ids; None: until a stop id, or the context is full.
        `scheduling`: further fields of Sampling."""
        self._begun_steps[name] = self.steps
        ignore_eos = "stop_ids" not in scheduling
        sampling = Sampling(max_tokens=outputs, ignore_eos=ignore_eos, **scheduling)
        self.core.sessions.apply(Generate(0, name, "turn", sampling))
        self._take_events()

    def cancel(self, name: str) -> None:
        self.core.sessions.apply(CancelTurn(0, name))
        self._take_events()

    def step(self) -> bool:
        """Launch a step, and collect one if as many are in flight as may be. Returns False if no
        turn can go on."""
        plan = self.core.loop.prepare_step()
        if plan is not None:
            self.steps += 1
            self._in_flight.append((plan, self.runner.launch(plan.batch)))
        if len(self._in_flight) > self._ahead or (self._in_flight and plan is None):
            done, result = self._in_flight.popleft()
            timed = BatchResult(result.results, self.step_s)
            self.core.loop.apply_result(done, timed, self.core.sessions)
            self._take_events()
        elif plan is None:
            return False
        if self._audit:
            self.core.cache.audit()
        return True

    def run(self) -> None:
        """Run steps until every turn has ended."""
        while self.step():
            assert self.steps < STEPS_MAX, "the turns do not end"
        unfinished = self.prompts.keys() - self.ended_steps
        assert not unfinished, f"{len(unfinished)} turns have not ended"

    @property
    def computed_tokens(self) -> int:
        return self.counters.tokens_computed

    @property
    def needed_tokens(self) -> int:
        """Tokens that must be computed at least: each prefix of a prompt once in each cache scope,
        and every id of an output."""
        prefixes: set[int] = set()
        for name, prompt in self.prompts.items():
            prefix = hash(self._scopes[name])
            for token in prompt:
                prefix = hash((prefix, token))
                prefixes.add(prefix)
        return len(prefixes) + sum(map(len, self.outputs.values()))

    @property
    def computed_over_needed(self) -> float:
        return self.computed_tokens / self.needed_tokens

    @property
    def retractions(self) -> int:
        return self.core.scheduler.admission.retractions

    def ordered_first_id_steps(self) -> Sequence[int]:
        return sorted(self.first_id_steps.values())

    def _take_events(self) -> None:
        for event in self.core.loop.take_events():
            match event:
                case TurnTokens(session=name):
                    self.outputs[name] += event.ids
                    last = self._last_id_steps.get(name)
                    if last is None:
                        self.first_id_steps[name] = self.steps - self._begun_steps[name]
                        self.gaps[name] = 0
                    else:
                        self.gaps[name] = max(self.gaps[name], self.steps - last)
                    self._last_id_steps[name] = self.steps
                case TurnEnded(session=name):
                    assert event.reason in ("stop", "length", "cancelled"), event
                    self.ended[name] = event
                    self.ended_steps[name] = self.steps
                case CommandRefused():
                    raise AssertionError(event)
                case _:
                    pass


# ---- scenarios -----------------------------------------------------------------------------


def run_shared_prompt(
    *, late: bool = False, scopes: int = 1, own: int = 0, **options: Any
) -> LoadedEngine:
    """Eight turns with the same prompt of 1,600 ids, each followed by `own` ids of its own, in
    `scopes` cache scopes. `late`: seven of them begin while the first one is in its fourth prefill
    chunk."""
    loaded, common = LoadedEngine(**options), prompt_ids(1_600, seed=1)
    for n in range(8):
        prompt = common + prompt_ids(own, seed=2 + n)
        loaded.begin(f"s{n}", prompt, 4, scope=f"scope {n % scopes}")
        if late and n == 0:
            for _ in range(3):
                loaded.step()
    loaded.run()
    return loaded


def run_appended_prompts(*, at_once: bool, **options: Any) -> LoadedEngine:
    """Eight sessions to which the same prompt of 1,600 ids is appended, and no turn begins until
    all of it is computed. `at_once`: else each prompt is appended when the one before is
    computed."""
    loaded, prompt = LoadedEngine(**options), prompt_ids(1_600, seed=1)
    for n in range(8):
        loaded.append(f"s{n}", prompt)
        while not at_once and loaded.step():
            pass
    while loaded.step():
        pass
    for n in range(8):
        loaded.generate(f"s{n}", 4)
    loaded.run()
    return loaded


def run_burst(count: int, length: int, outputs: int = 20, **options: Any) -> LoadedEngine:
    """`count` cold prompts at once into a pool for three of them."""
    loaded = LoadedEngine(pages=3 * pages_for(length + outputs), **options)
    for n in range(count):
        loaded.begin(f"s{n}", prompt_ids(length, seed=n), outputs)
    loaded.run()
    return loaded


def run_decode_pressure(
    count: int, length: int, outputs: int, pool: int = 3_600, **options: Any
) -> LoadedEngine:
    """`count` turns at once, whose prompts fit into a pool of `pool` tokens, but not their
    outputs."""
    loaded = LoadedEngine(pages=pages_for(pool), **options)
    for n in range(count):
        loaded.begin(f"s{n}", prompt_ids(length, seed=n), outputs)
    loaded.run()
    return loaded


def run_early_stops(
    count: int,
    length: int,
    outputs: int,
    pool: int,
    max_tokens: int | None,
    *,
    after_one: bool = False,
    **options: Any,
) -> LoadedEngine:
    """`count` turns at once that may have `max_tokens` ids, and stop after `outputs`. `after_one`:
    another such turn has ended before."""
    loaded = LoadedEngine(
        pages=pages_for(pool),
        make_runner=lambda geometry: StoppingRunner(geometry, length + outputs - 1),
        **options,
    )
    if after_one:
        loaded.begin("first", prompt_ids(length, seed=count), max_tokens, stop_ids=(STOP_ID,))
        loaded.run()
    for n in range(count):
        loaded.begin(f"s{n}", prompt_ids(length, seed=n), max_tokens, stop_ids=(STOP_ID,))
    loaded.run()
    return loaded


def run_cold_prompts(count: int, length: int = 1_000, **options: Any) -> LoadedEngine:
    """`count` cold prompts at once, with room for all of them."""
    loaded = LoadedEngine(**options)
    for n in range(count):
        loaded.begin(f"s{n}", prompt_ids(length, seed=n), 1)
    loaded.run()
    return loaded


def run_more_turns_than_rows(turns: int = 128, outputs: int = 400, **options: Any) -> LoadedEngine:
    """Short prompts with long outputs, for twice as many turns as rows."""
    loaded = LoadedEngine(rows=turns // 2, **options)
    for n in range(turns):
        loaded.begin(f"s{n}", prompt_ids(16, seed=n), outputs)
    loaded.run()
    return loaded


def run_beside_queued_prompts(queued: int = 64, **options: Any) -> LoadedEngine:
    """A prompt of 1,000 ids of the group "quiet" while another group queues `queued` of them."""
    loaded = LoadedEngine(**options)
    for n in range(queued):
        loaded.begin(f"s{n}", prompt_ids(1_000, seed=n), 4, group="busy")
    loaded.step()
    loaded.begin("quiet", prompt_ids(1_000, seed=queued), 4, group="quiet")
    loaded.run()
    return loaded


def run_beside_more_turns_than_rows(**options: Any) -> LoadedEngine:
    """A turn of the group "quiet" while another group has 100 turns for 16 rows."""
    loaded = LoadedEngine(rows=16, **options)
    for n in range(100):
        loaded.begin(f"s{n}", prompt_ids(16, seed=n), 60, group="busy")
    for _ in range(20):
        loaded.step()
    loaded.begin("quiet", prompt_ids(16, seed=100), 30, group="quiet")
    loaded.run()
    return loaded


def run_beside_full_pool(**options: Any) -> LoadedEngine:
    """A prompt of 1,000 ids of the group "quiet" while another group fills a pool of 3,600."""
    loaded = LoadedEngine(pages=pages_for(3_600), **options)
    for n in range(30):
        loaded.begin(f"s{n}", prompt_ids(200, seed=n), 300, group="busy")
    for _ in range(150):
        loaded.step()
    loaded.begin("quiet", prompt_ids(1_000, seed=30), 20, group="quiet")
    loaded.run()
    return loaded


def begin_decodes_beside_waiting_turns(waiting: int) -> LoadedEngine:
    """64 decoding turns, which fill the pool, and `waiting` others with prompts of 1,600 ids."""
    loaded = LoadedEngine(pages=64 * pages_for(1_200))
    for n in range(64):
        loaded.begin(f"s{n}", prompt_ids(200, seed=n), 1_000)
    while len(loaded.first_id_steps) < 64:
        loaded.step()
    for n in range(waiting):
        loaded.begin(f"w{n}", prompt_ids(1_600, seed=64 + n), 1_000)
    return loaded
