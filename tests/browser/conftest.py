"""The run of vitest that the tests of a module share."""

from pathlib import Path
from typing import cast

import pytest

from tests.browser import vitest


@pytest.fixture(scope="module")
def results(request: pytest.FixtureRequest) -> vitest.Results:
    """Run the files that the selected tests of the module check."""
    selected = [
        cast("Path", item.callspec.params["file"])
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.module is request.module
        and hasattr(item, "callspec")
    ]
    script = cast("vitest.Script", request.module.SCRIPT)
    return vitest.run(script, selected)
