"""Compare the code with the frozen files, or write them again.

python -m tests.frozen                          run the tests
python -m tests.frozen --lives 10000 --jobs 2   compare the first 10,000 simulated lives
python -m tests.frozen --trace 7                print the trace of one life
python -m tests.frozen --write names            write one file again: link, names, goldens, store
python -m tests.frozen --write lives --lives 10000  append the lives that the file lacks
"""

import argparse
import sys

import pytest

from tests.frozen import goldens, link, lives, names, store

WRITE = {"link": link.write, "names": names.write, "goldens": goldens.write, "store": store.write}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.frozen",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--lives", type=int, metavar="N", help="the first N simulated lives")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="processes for lives")
    parser.add_argument("--trace", type=int, metavar="SEED")
    parser.add_argument("--write", choices=[*WRITE, "lives"])
    options = parser.parse_args()
    if options.trace is not None:
        print(*lives.trace(options.trace), sep="\n")
        return 0
    if options.write == "lives":
        lives.write(options.lives or lives.LIVES, options.jobs)
        return 0
    if options.write is not None:
        WRITE[options.write]()
        return 0
    if options.lives is not None:
        return bool(lives.check(options.lives, options.jobs))
    return pytest.main(["-q", "tests/frozen"])


if __name__ == "__main__":
    sys.exit(main())
