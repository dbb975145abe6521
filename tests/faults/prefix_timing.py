"""F31: a tenant probes prompts of another tenant, and measures the time to the first token."""

import itertools
import math
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from websockets.asyncio.client import connect

from tests.faults.deployment import Deployment, running_deployment
from tests.faults.row import FaultRow
from tests.support.clients import RealtimeClient, message_item
from tests.support.web_servers import ACME, TENANTS, UMBRELLA

SAMPLES = 40
PROMPT_CHARS = 1200
SIGNIFICANCE = 1e-4
"""Probability, of equal distributions, below which two series of times count as different."""


async def probe_prompts(deployment: Deployment, rng: Random) -> None:
    """Compare the times of B for prompts of A with its times for new prompts, and with A's own.

    Each prompt is probed once, because B itself may find it in its own KV the second time.
    """
    probed, fresh, own = [], [], []
    for _ in range(SAMPLES):
        prompt, other = (make_prompt(rng) for _ in range(2))
        await measure_first_token_s(deployment, ACME, prompt)
        measures = [
            (probed, UMBRELLA, prompt, 0),
            (fresh, UMBRELLA, other, 0),
            (own, ACME, prompt, PROMPT_CHARS // 2),
        ]
        rng.shuffle(measures)
        for times_s, headers, text, cached_min in measures:
            time_s, cached = await measure_first_token_s(deployment, headers, text)
            assert cached >= cached_min
            assert cached_min or cached < PROMPT_CHARS // 10, "a hit in the KV of another tenant"
            times_s.append(time_s)
    assert compare_distributions(own, fresh) < SIGNIFICANCE, "the test has no power"
    assert compare_distributions(probed, fresh) > SIGNIFICANCE, "B can tell A's prompts by time"


def make_prompt(rng: Random) -> str:
    return "".join(rng.choices("abcdefghij ", k=PROMPT_CHARS))


async def measure_first_token_s(
    deployment: Deployment, headers: dict[str, str], prompt: str
) -> tuple[float, int]:
    """Return the time to the first token of a new session, and how many tokens were cached."""
    async with connect(deployment.urls[0], additional_headers=headers, proxy=None) as socket:
        client = RealtimeClient(socket)
        if (await client.receive())["type"] == "error":  # the machine is too busy for Redis
            return await measure_first_token_s(deployment, headers, prompt)
        began_s = time.perf_counter()
        response = await client.start_response(
            conversation="none",
            input=[message_item(prompt)],
            max_output_tokens=2,
            ignore_eos=True,
        )
        await client.wait_deltas(1)
        time_s = time.perf_counter() - began_s
        await client.wait_response(response)
        usage = client.ended_responses[response]["usage"]
        return time_s, usage["input_token_details"]["cached_tokens"]


def compare_distributions(one: Sequence[float], two: Sequence[float]) -> float:
    """Return the p-value of the two-sample Kolmogorov-Smirnov test, by its asymptotic formula."""
    distance = max(
        abs(sum(x <= at for x in one) / len(one) - sum(x <= at for x in two) / len(two))
        for at in itertools.chain(one, two)
    )
    root = math.sqrt(len(one) * len(two) / (len(one) + len(two)))
    scaled = (root + 0.12 + 0.11 / root) * distance
    if scaled < 0.3:
        return 1.0
    return 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 100))


@asynccontextmanager
async def deployment_of_two_tenants(folder: Path) -> AsyncIterator[Deployment]:
    async with running_deployment(folder, gateways=1, tenants=TENANTS) as deployment:
        yield deployment


ROWS = (
    FaultRow(
        id="F31",
        fault="a tenant sends 40 prompts of another tenant and 40 new ones, and compares the times "
        "to the first token",
        expectation="the times do not differ (Kolmogorov-Smirnov), nor the cached tokens; those of "
        "the tenant whose prompts they are do",
        environment=deployment_of_two_tenants,
        trial=probe_prompts,
        full_trials=25,
        quick_trials=1,
    ),
)
