"""Published figures: evidence/benchmarks/NAME.json and NAME.svg, and their tables in the page.

evidence/benchmarks.md is prose with a place for each result, between two comments:

    <!-- result: NAME -->
    <!-- end of result -->

All between them is written from the file of that name, or says that there is none.
`python -m tools.write_benchmarks --check` compares the page and the plots with the files.
"""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from continuo.bench import plot
from continuo.bench.host import FOREIGN_CORES_MAX
from continuo.bench.plot import Plot
from continuo.bench.report import render_table

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "evidence" / "benchmarks.md"
FOLDER = ROOT / "evidence" / "benchmarks"
_PLACE = re.compile(
    r"(<!-- result: ([\w.-]+) -->\n)(.*?)(<!-- end of result -->)", re.DOTALL | re.MULTILINE
)


def check_name(name: str, workload: str) -> None:
    """Raise SystemExit unless a result of `workload` can be published under `name`."""
    if not PAGE.exists():
        raise SystemExit(f"--publish: there is no {PAGE}; it is in a checkout of the repository")
    if name != workload and not re.fullmatch(rf"{workload}-[\w.-]+", name):
        raise SystemExit(f"--publish: {name} is not {workload}, nor begins with {workload}-")
    if name not in list_places(PAGE.read_text()):
        raise SystemExit(f"--publish: evidence/benchmarks.md has no `<!-- result: {name} -->`")


def publish(name: str, data: Mapping[str, Any]) -> None:
    """Save a result, and write it into the page."""
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{name}.json").write_text(_dump(data))
    for path, text in write_files().items():
        path.write_text(text)


def write_files() -> dict[Path, str]:
    """Return the text of each file that is written from the results: the page, and plots."""
    results = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
    files = {PAGE: write_page(PAGE.read_text(), results)}
    for name, data in results.items():
        if "plot" in data:
            files[FOLDER / f"{name}.svg"] = plot.render_svg(Plot(**data["plot"]))
    return files


def write_page(page: str, results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page with each result in its place. Raises SystemExit if a result has none."""
    if missing := set(results) - set(list_places(page)):
        raise SystemExit(f"evidence/benchmarks.md has no place for {', '.join(sorted(missing))}")

    def fill(found: re.Match[str]) -> str:
        begin, name, _, end = found.groups()
        text = _render(name, results[name]) if name in results else f"*{name}: not published.*\n"
        return begin + text + end

    return _PLACE.sub(fill, page)


def list_places(page: str) -> list[str]:
    """Return the names of the results that have a place in the page."""
    return [found[2] for found in _PLACE.finditer(page)]


def _render(name: str, data: Mapping[str, Any]) -> str:
    parts = [f"**{data['title']}**", render_table(data["rows"])]
    for heading, rows in data["tables"].items():
        if rows:
            parts += [f"**{heading}**", render_table(rows)]
    if "plot" in data:
        parts.append(f"![{data['plot']['title']}](benchmarks/{name}.svg)")
    if data["notes"]:
        parts.append("\n".join(f"- {note}" for note in data["notes"]))
    parts.append(describe_run(data["run"]))
    return "\n" + "\n\n".join(parts) + "\n\n"


def describe_run(run: Mapping[str, Any]) -> str:
    """Describe where, when and with which command a result was measured."""
    noise = " (noisy)" if run["foreign_cores"] > FOREIGN_CORES_MAX else ""
    return (
        f"`{run['command']}`: {run['date']}, commit {run['commit']}, "
        f"{run['seconds'] / 60:.0f} min; {run['machine']}; "
        f"foreign CPU {run['foreign_cores']} cores{noise}."
    )


def current_commit() -> str:
    """Return the commit of the checkout, with `+` if files differ from it; else `unknown`."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
            cwd=ROOT,
            check=True,
            capture_output=True,
            text=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return described.stdout.strip()


def _dump(data: Mapping[str, Any]) -> str:
    """Write JSON with a line for each number of a table, but lists of numbers on one line."""
    text = json.dumps(data, indent=1)
    flat = re.compile(r"\[\s*(-?[\d.e+-]+(?:,\s*-?[\d.e+-]+)*)\s*\]")
    return flat.sub(lambda found: "[" + re.sub(r"\s+", " ", found[1]) + "]", text) + "\n"
