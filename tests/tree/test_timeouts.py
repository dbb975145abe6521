"""Test of the limit of async tests in tests/conftest.py."""

import asyncio

import pytest


@pytest.mark.timeout(1)
@pytest.mark.xfail(raises=TimeoutError, strict=True, reason="it takes longer than its timeout")
async def test_async_test_ends_at_its_timeout() -> None:
    await asyncio.sleep(60)
