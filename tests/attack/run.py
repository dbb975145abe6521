"""A run: every attack in turn, beside bystanders that the server must serve undisturbed."""

import asyncio
import itertools
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from tests.attack import worker
from tests.attack.attacks import SUCCEEDED
from tests.attack.bystander import Pair
from tests.attack.target import Server

P99_BEYOND_S_MAX = 0.010
"""How much longer the 99th percentile of a bystander's responses may be than the control's."""
STALL_S_MAX = 0.100
"""How much longer a bystander's longest response may take than the control's."""
FIRST_TOKEN_RATIO_MAX = 2.0
"""Factor by which the median time to a bystander's first token may exceed the control's."""
FAIR_SHARE = 2.0
"""Factor by which an answer to a bystander may take longer while one other tenant uses the engine:
each has a right to half of it."""
ANSWER_SLACK_S = 0.5
"""Further time that an answer may take, for what other processes of the machine take."""
GROWTH_BYTES_MAX = 400 * 1024 * 1024
"""How much the gateway's memory may grow after the first attack begins."""
MEMORY_INTERVAL_S = 0.1
SETTLE_S = 1.0
"""Between an attack and the next one."""
ATTACKERS = 2
"""Processes that run one attack at the same time."""


class Outcome(msgspec.Struct):
    """The outcome of one phase of one attack."""

    attack: str
    pair: Pair
    tally: Counter[str]
    peak_bytes: int

    def line(self) -> str:
        answers = ", ".join(f"{key} {n:,}" for key, n in sorted(self.tally.items()))
        server, control = self.pair.server, self.pair.control
        return (
            f"{self.attack:<22} {self.pair.p99_beyond_s * 1e3:6.1f} p99, "
            f"{server.longest_s * 1e3:7.1f} longest, {server.longest_connect_s * 1e3:7.1f} new, "
            f"control {control.longest_s * 1e3:6.1f} ms, first token x "
            f"{self.pair.first_token_ratio:.1f}, {self.peak_bytes >> 20:>5,} MiB, "
            f"{server.answers} answers, {server.longest_answer_s:.2f} s   ({answers})"
        )


class Report:
    """The requirements of a run, and the violations found."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.before: list[Outcome] = []
        """Outcomes of the same attacks on the version before."""
        self.violations: list[str] = []

    def add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        for fault in outcome.pair.server.faults:
            self.violations.append(f"{outcome.attack}: a bystander was disturbed: {fault}")
        reached = [key for key in outcome.tally if key.startswith(SUCCEEDED)]
        self.violations += [f"{outcome.attack} {key}" for key in reached]

    def check(self, server: Server, before_bytes: int, engines: list[int]) -> None:
        self.violations += [f"the log holds: {line}" for line in server.faults()[:10]]
        if server.engines() != engines:
            self.violations.append("an engine has died")
        peak = max((outcome.peak_bytes for outcome in self.outcomes), default=0)
        if peak - before_bytes > GROWTH_BYTES_MAX:
            self.violations.append(f"the gateway grew from {before_bytes:,} to {peak:,} bytes")

    def check_shares(self, alone_s: float) -> None:
        """Check that no answer took longer than a fair share of the engine allows. `alone_s`: how
        long it takes without an attack."""
        longest_s = FAIR_SHARE * alone_s + ANSWER_SLACK_S
        for outcome in self.outcomes:
            taken_s = outcome.pair.server.longest_answer_s
            if taken_s > longest_s:
                self.violations.append(
                    f"{outcome.attack}: an answer took {taken_s:.2f} s, alone {alone_s:.2f} s"
                )

    def check_delays(self) -> None:
        """Check how much later than the control the attacked server has answered."""
        for outcome in self.outcomes:
            pair, attack = outcome.pair, outcome.attack
            if pair.p99_beyond_s > P99_BEYOND_S_MAX:
                beyond_ms = pair.p99_beyond_s * 1e3
                self.violations.append(f"{attack}: a 99th percentile of {beyond_ms:.1f} ms more")
            if pair.stall_s > STALL_S_MAX:
                self.violations.append(f"{attack}: a stall of {pair.stall_s * 1e3:.1f} ms")
            # Only attacks on the event loop; what one on the engine may take: `check_shares`.
            if attack != "long_responses" and pair.first_token_ratio > FIRST_TOKEN_RATIO_MAX:
                ratio = pair.first_token_ratio
                self.violations.append(f"{attack}: a first token took {ratio:.1f} times as long")

    def table(self) -> str:
        """The times of each attack as a Markdown table: the median and the worst of its phases,
        beyond the control; of the version before in parentheses, if it was attacked."""
        lines = [
            "| attack | phases | p99 | longest | new connection | first token | memory |",
            "|---|---|---|---|---|---|---|",
        ]
        for attack in sorted({outcome.attack for outcome in self.outcomes}):
            now = _describe([outcome for outcome in self.outcomes if outcome.attack == attack])
            before = _describe([outcome for outcome in self.before if outcome.attack == attack])
            cells = [
                f"{value} ({earlier})" if self.before else value
                for value, earlier in zip(now[1:], before[1:], strict=True)
            ]
            lines.append(f"| {' | '.join([f'`{attack}`', now[0], *cells])} |")
        return "\n".join(lines)


def _describe(outcomes: list[Outcome]) -> list[str]:
    """The number of phases, and median and maximum of each figure."""
    if not outcomes:
        return [""] * 6
    pairs = [outcome.pair for outcome in outcomes]
    p99_ms = [pair.p99_beyond_s * 1e3 for pair in pairs]
    longest_ms = [pair.longest_beyond_s * 1e3 for pair in pairs]
    connect_ms = [pair.connect_beyond_s * 1e3 for pair in pairs]
    ratios = [pair.first_token_ratio for pair in pairs]
    return [
        f"{len(outcomes)}",
        f"{statistics.median(p99_ms):.0f}, {max(p99_ms):.0f} ms",
        f"{statistics.median(longest_ms):.0f}, {max(longest_ms):.0f} ms",
        f"{statistics.median(connect_ms):.0f}, {max(connect_ms):.0f} ms",
        f"{statistics.median(ratios):.1f}, {max(ratios):.1f} times",
        f"{max(outcome.peak_bytes for outcome in outcomes) >> 20:,} MiB",
    ]


async def answer_alone_s(server: Server, control: Server, seconds: float = 5.0) -> float:
    """Measure the longest time of an answer to a bystander without an attack."""
    process = await worker.start(
        "watch", str(server.address.port), str(control.address.port), "", str(seconds)
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0, "watching failed"
    return msgspec.json.decode(printed, type=Pair).server.longest_answer_s


async def attack(server: Server, control: Server, name: str, seconds: float, seed: int) -> Outcome:
    """Run one phase: attackers and bystanders, each in a process of its own."""
    port, key = str(server.address.port), server.address.key
    watching = await worker.start(
        "watch", port, str(control.address.port), key, str(seconds + SETTLE_S)
    )
    attacking = [
        await worker.start("attack", name, port, key, str(seconds), str(seed * ATTACKERS + n))
        for n in range(ATTACKERS)
    ]
    working = asyncio.gather(*(process.communicate() for process in (watching, *attacking)))
    peak_bytes = await _peak_bytes(server, working)
    outputs = await working
    for process in (watching, *attacking):
        assert process.returncode == 0, f"{name}, seed {seed}: a process of the run failed"
    tally: Counter[str] = Counter()
    for printed, _ in outputs[1:]:
        tally.update(msgspec.json.decode(printed, type=dict[str, int]))
    pair = msgspec.json.decode(outputs[0][0], type=Pair)
    return Outcome(name, pair, tally, peak_bytes)


async def _peak_bytes(server: Server, until: "asyncio.Future[Any]") -> int:
    """The peak memory of the gateway until `until` is done."""
    peak = server.memory_bytes()
    while not until.done():
        await asyncio.wait([until], timeout=MEMORY_INTERVAL_S)
        peak = max(peak, server.memory_bytes())
    return peak


async def run(
    server: Server,
    control: Server,
    names: Iterable[str],
    *,
    minutes: float,
    phase_s: float,
    seed: int,
    before: Server | None = None,
) -> Report:
    """Run the attacks in a seeded order until the time is over; each at least once. `before`: a
    server of another version, which gets the same attacks just before; only its times are noted."""
    report, names = Report(), list(names)
    before_bytes, engines = server.memory_bytes(), server.engines()
    alone_s = await answer_alone_s(server, control)
    end_s = time.monotonic() + minutes * 60
    for phase in itertools.count():
        if phase >= len(names) and time.monotonic() > end_s:
            break
        rounds, index = divmod(phase, len(names))
        name = random.Random(seed + rounds).sample(names, len(names))[index]
        if before is not None:
            outcome = await attack(before, control, name, phase_s, seed + phase)
            report.before.append(outcome)
            print(f"before: {outcome.line()}", flush=True)
        outcome = await attack(server, control, name, phase_s, seed + phase)
        report.add(outcome)
        print(outcome.line(), flush=True)
    report.check(server, before_bytes, engines)
    report.check_shares(alone_s)
    return report
