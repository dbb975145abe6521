"""The figures of the last run of the checks on real servers, line by line."""

from tests.upstream.install import BUILD

FIGURES = BUILD / "figures.txt"


def add_figure(line: str) -> None:
    FIGURES.parent.mkdir(parents=True, exist_ok=True)
    with FIGURES.open("a") as file:
        print(line, file=file)
