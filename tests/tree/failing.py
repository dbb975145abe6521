"""A test that fails, for test_failure_report.py. pytest does not collect a file of this name."""

from tests.support.processes import running_gateway


async def test_that_fails_beside_a_server() -> None:
    with running_gateway() as gateway:
        assert await gateway.wait_exit() == 1
        raise AssertionError("no answer")
