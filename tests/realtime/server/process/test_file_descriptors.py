"""The limit of open file descriptors at the start of a gateway."""

import resource

import pytest

from continuo.realtime.limits import Limits
from continuo.realtime.server.process.file_descriptors import count_required, warn_if_too_few

LIMITS = Limits()


def test_too_few_descriptors_are_said_with_both_numbers(caplog: pytest.LogCaptureFixture) -> None:
    warn_if_too_few(4096, LIMITS)
    assert "4096" in caplog.text
    assert str(count_required(LIMITS)) in caplog.text


@pytest.mark.parametrize("allowed", [resource.RLIM_INFINITY, count_required(LIMITS)])
def test_enough_descriptors_are_no_warning(caplog: pytest.LogCaptureFixture, allowed: int) -> None:
    warn_if_too_few(allowed, LIMITS)
    assert not caplog.records
