"""`continuo` with a model that takes its time: `python -m tests.browser.paced WORDS`. The bundled
one has told a story before anybody could do something in the middle of it."""

import sys

from continuo.engine.client import engine_process
from continuo.realtime.server.cli import main

if __name__ == "__main__":
    engine_process.ENGINE_MODULE = "tests.browser.paced_boot"
    sys.exit(main())
