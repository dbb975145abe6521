"""Compare the code with the frozen files, or write them again.

python -m tests.frozen                 run the tests
python -m tests.frozen --write names   write one file again: link, names, goldens, store
"""

import argparse
import sys

import pytest

from tests.frozen import goldens, link, names, store

WRITE = {"link": link.write, "names": names.write, "goldens": goldens.write, "store": store.write}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.frozen",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--write", choices=WRITE)
    options = parser.parse_args()
    if options.write is not None:
        WRITE[options.write]()
        return 0
    return pytest.main(["-q", "tests/frozen"])


if __name__ == "__main__":
    sys.exit(main())
