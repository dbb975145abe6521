"""Write the tables and plots of evidence/benchmarks.md from the results in evidence/benchmarks/.

With --check, only exit with 1 if a file differs.
"""

import argparse
import sys

from continuo.bench import published


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    is_stale = False
    for path, text in published.write_files().items():
        if path.exists() and path.read_text() == text:
            continue
        if options.check:
            is_stale = True
            print(f"{path.name} differs: run python -m tools.write_benchmarks", file=sys.stderr)
        else:
            path.write_text(text)
    return int(is_stale)


if __name__ == "__main__":
    sys.exit(main())
