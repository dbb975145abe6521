"""python -m tests.attack [--minutes M] [--phase S] [--seed N] [--only NAME] [--against COMMIT]:
attacks a server.

The server runs the bundled model on loopback; bystanders hold conversations with it meanwhile.

Every response to a bystander must be right. Compared with an idle control process beside it, the
99th percentile of the responses may be 10 ms longer, the longest 100 ms, and the median time to the
first token twice as long. The gateway's memory stays bounded, no engine dies, and the log holds no
traceback. An answer to a bystander takes at most twice as long as without an attack, which is its
tenant's fair share of the engine, and half a second. The exit status is 1 if one of these does not
hold. With `--against COMMIT`, each attack is made on a server of that commit as well, just before.
"""

import argparse
import asyncio
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from tests.attack.attacks import ATTACKS
from tests.attack.run import Report, run
from tests.attack.target import serving
from tests.support.versions import extract_commit, has_commit


async def _run(options: argparse.Namespace, folder: Path) -> Report:
    for name in ("server", "control", "before"):
        (folder / name).mkdir()
    with ExitStack() as stack:
        server = stack.enter_context(serving(folder / "server"))
        control = stack.enter_context(serving(folder / "control"))
        before = None
        if options.against:
            source = extract_commit(options.against, folder / "source")
            before = stack.enter_context(serving(folder / "before", source=source))
        names = options.only or list(ATTACKS)
        report = await run(
            server,
            control,
            names,
            minutes=options.minutes,
            phase_s=options.phase,
            seed=options.seed,
            before=before,
        )
        report.check_delays()
        return report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, metavar="M", help="of the whole run")
    parser.add_argument(
        "--phase", type=float, default=20, metavar="S", help="seconds of one attack"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument(
        "--only", action="append", choices=[*ATTACKS], metavar="NAME", help="may be repeated"
    )
    parser.add_argument(
        "--against", metavar="COMMIT", help="attack a server of this commit as well, to compare"
    )
    options = parser.parse_args()
    if options.against and not has_commit(options.against):
        parser.error(f"--against: git has no commit {options.against}")
    with tempfile.TemporaryDirectory() as folder:
        report = asyncio.run(_run(options, Path(folder)))
    p99_s = max(outcome.pair.p99_beyond_s for outcome in report.outcomes)
    stall_s = max(outcome.pair.stall_s for outcome in report.outcomes)
    print(
        f"beyond the control, in {len(report.outcomes)} phases: "
        f"99th percentile {p99_s * 1e3:.1f} ms, longest stall {stall_s * 1e3:.1f} ms"
    )
    print(report.table())
    for violation in report.violations:
        print(f"FOUND {violation}")
    print("Nothing found." if not report.violations else f"{len(report.violations)} found.")
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
