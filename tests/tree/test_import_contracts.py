"""Tests of the import contracts in pyproject.toml: they report every planted violation.

All are planted at once into a copy of the packages, and one run of import-linter must name each.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
PACKAGES = ("engine", "realtime", "bench")
CONTINUO = "continuo."

VIOLATIONS = (
    # Only `continuo.engine` imports the client's half of the engine.
    ("realtime/session/status.py", "engine.client.turn_stream"),
    ("realtime/generation/prompt.py", "engine.client.placements"),
    ("realtime/server/process/console.py", "engine.client.engine_process"),
    ("realtime/registry/factory.py", "engine.core.sessions"),
    # The two halves of the engine do not import each other.
    ("engine/client/router.py", "engine.core.stats"),
    ("engine/core/deferred_commands.py", "engine.client.engine_selection"),
    ("engine/server/listener.py", "engine.client.connection"),
    ("engine/client/engine_client.py", "engine.device.runner"),
    ("engine/device/step_inputs.py", "engine.core.cache"),
    ("engine/device/kv_pool.py", "engine.core.schedule"),
    # What a command means for a session knows neither pages nor steps.
    ("engine/core/sessions.py", "engine.core.cache.lease"),
    ("engine/core/transitions.py", "engine.core.schedule.scheduler"),
    # Another server as the engine is reached with neither.
    ("engine/upstream/server.py", "engine.core.cache.lease"),
    ("engine/upstream/slots.py", "engine.client.placements"),
    ("engine/core/turn.py", "engine.upstream.server"),
    ("engine/upstream/detection.py", "httptools"),
    # Only the device imports torch and transformers.
    ("engine/wire/bounds.py", "torch"),
    ("engine/client/placements.py", "torch"),
    ("engine/core/stats.py", "torch"),
    ("engine/upstream/http.py", "torch"),
    ("engine/text/grammar.py", "transformers"),
    # Packages without I/O.
    ("realtime/event_log/event_id.py", "asyncio"),
    ("engine/core/cache/page_pool.py", "asyncio"),
    ("realtime/protocol/events.py", "redis"),
    ("realtime/session/session.py", "redis"),
    ("realtime/conversation/rendering.py", "sqlite3"),
    ("realtime/protocol/items.py", "starlette"),
    ("realtime/tenants/rate_limits.py", "threading"),
    # Packages of realtime import only lower layers.
    ("realtime/conversation/conversation.py", "realtime.registry.registry"),
    ("realtime/store/base.py", "realtime.session.session"),
    ("realtime/ids.py", "realtime.server.config.settings"),
    ("realtime/session/state.py", "realtime.responses.service"),
    ("realtime/persistence/session_writer.py", "realtime.generation.prompt"),
    ("realtime/server/config/addresses.py", "bench.report"),
    # The client library imports nothing of the server, which uses its package alone.
    ("realtime/client/draft.py", "realtime.errors"),
    ("realtime/client/tools.py", "engine"),
    ("realtime/server/list_models.py", "realtime.client.connection"),
    # Cycles are refused, even between two files.
    ("engine/core/turn.py", "engine.core.loop"),
    ("engine/device/runner.py", "engine.device.build"),
)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The output of import-linter on a copy with every violation, without line breaks."""
    tree = tmp_path_factory.mktemp("tree")
    for package in PACKAGES:
        only_code = shutil.ignore_patterns("__pycache__", "assets", "bundled", "*.c", "*.h")
        shutil.copytree(ROOT / package, tree / CONTINUO.rstrip(".") / package, ignore=only_code)
    shutil.copytree(ROOT / "continuo" / "client", tree / "continuo" / "client")
    # A regular package, or import-linter would also read the checkout, as a part of the namespace.
    (tree / "continuo" / "__init__.py").touch()
    shutil.copy(ROOT / "pyproject.toml", tree)
    for file, imported in VIOLATIONS:
        with (tree / "continuo" / file).open("a") as source:
            source.write(f"\nimport {_module_name(imported)}\n")
    run = subprocess.run(
        (sys.executable, "-c", "from importlinter.cli import lint_imports; exit(lint_imports())"),
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree), "COLUMNS": "10000"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    return run.stdout


def _module_name(module: str) -> str:
    return f"{CONTINUO}{module}" if module.split(".")[0] in PACKAGES else module


@pytest.mark.parametrize(("file", "imported"), VIOLATIONS)
def test_planted_import_violation_is_reported(report: str, file: str, imported: str) -> None:
    importer = CONTINUO + file.removesuffix(".py").replace("/", ".")
    direct = f"{importer} -> {_module_name(imported)} (l."
    siblings = f".{importer.rpartition('.')[2]} -> .{imported.rpartition('.')[2]} ("
    assert direct in report or siblings in report
