"""`continuo` with a slowed model: `python -m tests.browser.paced ARGUMENTS`.

The bundled model ends a long response before a test can act in the middle of it.
"""

import sys

from continuo.engine.client import engine_process
from continuo.realtime.server.cli import main

if __name__ == "__main__":
    engine_process.ENGINE_MODULE = "tests.browser.paced_boot"
    sys.exit(main())
