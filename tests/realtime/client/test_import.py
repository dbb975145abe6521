"""Import of the client library: fast, and without the server."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

PROGRAM = """
import json, sys, time
began = time.process_time()
import continuo.client
elapsed = time.process_time() - began
print(json.dumps([elapsed, sorted(name.partition(".")[0] for name in sys.modules),
                  sorted(name for name in sys.modules if name.startswith("continuo."))]))
"""
CPU_MAX_S = 0.5
"""Bound of the CPU time, five times what is measured on an idle machine."""


def test_import_is_fast_and_loads_nothing_of_the_server() -> None:
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    elapsed_s, packages, modules = json.loads(run.stdout)
    assert elapsed_s < CPU_MAX_S
    assert not {"torch", "transformers", "tokenizers", "starlette", "uvloop"} & {*packages}
    rooms = {".".join(name.split(".")[1:3]) for name in modules}
    assert rooms == {"client", "realtime", "realtime.client"}
