"""LiteLLM and LangChain map each error of the server to the class that applications catch."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from continuo.realtime.limits import Limits
from continuo.realtime.server.auth.access_policy import AccessPolicy
from continuo.realtime.server.http.readiness import ReadinessGate
from tests.clients.conftest import KEY, ROOT
from tests.clients.test_error_rows import ServerFleet
from tests.realtime.conftest import chat_folder

Raised = dict[str, dict[str, list[str]]]
LITELLM = {
    "wrong key": "AuthenticationError",
    "one text over the context": "ContextWindowExceededError",
    "prompt over the context": "ContextWindowExceededError",
    "unknown model": "NotFoundError",
    "server not ready": "ServiceUnavailableError",
    "rate limit": "RateLimitError",
}
LANGCHAIN = {
    "wrong key": "ModelAuthenticationError",
    "one text over the context": "ContextOverflowError",
    "prompt over the context": "ContextOverflowError",
    "unknown model": "ModelNotFoundError",
    "server not ready": "InternalServerError",
    "rate limit": "ModelRateLimitError",
}
EXPECTED = [
    (library, case, expected)
    for library, table in (
        ("litellm", LITELLM),
        ("litellm hosted_vllm", LITELLM),
        ("langchain", LANGCHAIN),
        ("langchain responses", LANGCHAIN),
    )
    for case, expected in table.items()
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def raised(
    tmp_path_factory: pytest.TempPathFactory, middleware: Path
) -> AsyncIterator[Raised]:
    """Run each case through each library. Returns the classes of the exceptions raised."""
    async with contextlib.AsyncExitStack() as stack:
        fleet = ServerFleet(stack, chat_folder(tmp_path_factory.mktemp("middleware")))
        app, _, _ = await fleet.build()
        await fleet.open("plain", app)
        app, _, _ = await fleet.build()
        await fleet.open("closed", app, ReadinessGate(AccessPolicy(), wait_s_max=0.01))
        app, _, _ = await fleet.build(Limits(tokens_per_minute=1))
        await fleet.open("limited", app)
        yield await run_middleware(middleware, *fleet.servers)


async def run_middleware(python: Path, *servers: str) -> Raised:
    process = await asyncio.create_subprocess_exec(
        *(python, "-m", "tests.clients.middleware", KEY, *servers),
        cwd=Path(ROOT),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    return json.loads(output)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("library", "case", "expected"), EXPECTED)
def test_error_is_mapped_to_the_class_applications_catch(
    raised: Raised, library: str, case: str, expected: str
) -> None:
    assert expected in raised[library][case], raised[library][case]
