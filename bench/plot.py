"""A plot of lines, as SVG by this module alone, or as PNG by Pillow (extra `bench`).

SVG is written here and not by a library, so that the same figures give the same file everywhere and
the documentation can be checked against them.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from continuo.realtime.server.own_command import find_install_command

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 64, 200, 48, 48
"""Margins around the axes, in pixels; the legend is at the right."""
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000")
"""Distinguishable with any colour vision (Okabe and Ito); a ninth line begins anew."""
GRID, INK = "#dddddd", "#333333"
TICKS_MAX = 6
PNG_SCALE = 2
FONT_PX = 12


class Plot(NamedTuple):
    """Lines over the same horizontal axis."""

    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Sequence[float]]
    """Heights of the points of each line, the first of which is at the first of `x`."""
    x: Sequence[float]


class _Line(NamedTuple):
    points: Sequence[tuple[float, float]]
    color: str
    width: float


class _Text(NamedTuple):
    x: float
    y: float
    """Position of the baseline."""
    text: str
    anchor: str = "start"
    """start, middle or end: which part of the text is at `x`."""


def check_path(path: Path) -> None:
    """Raise SystemExit unless a plot can be saved under that name."""
    if path.suffix not in (".svg", ".png"):
        raise SystemExit(f"--plot: a plot is saved as .svg or .png, not as {path.name}")
    if path.suffix == ".png":
        _import_pillow()


def save(plot: Plot, path: Path) -> None:
    """Save a plot under a name that `check_path` accepts."""
    if path.suffix == ".svg":
        path.write_text(render_svg(plot))
    else:
        _render_png(plot).save(path)


def render_svg(plot: Plot) -> str:
    """Render a plot as an SVG document."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="sans-serif" font-size="{FONT_PX}" fill="{INK}" role="img">',
        f"<title>{escape(plot.title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
    ]
    lines, texts = _draw(plot)
    for line in lines:
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in line.points)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{line.color}" '
            f'stroke-width="{line.width}" stroke-linejoin="round"/>'
        )
    parts += [
        f'<text x="{text.x:.1f}" y="{text.y:.1f}" text-anchor="{text.anchor}">'
        f"{escape(text.text)}</text>"
        for text in texts
    ]
    return "\n".join([*parts, "</svg>", ""])


def _render_png(plot: Plot) -> Any:
    """Render a plot as an image of Pillow."""
    image_module, draw_module, font_module = _import_pillow()
    scale = PNG_SCALE
    image = image_module.new("RGB", (WIDTH * scale, HEIGHT * scale), "white")
    canvas = draw_module.Draw(image)
    font = font_module.load_default(FONT_PX * scale)
    lines, texts = _draw(plot)
    for line in lines:
        points = [(x * scale, y * scale) for x, y in line.points]
        canvas.line(points, fill=line.color, width=round(line.width * scale), joint="curve")
    anchors = {"start": "ls", "middle": "ms", "end": "rs"}
    for text in texts:
        place = (text.x * scale, text.y * scale)
        canvas.text(place, text.text, fill=INK, font=font, anchor=anchors[text.anchor])
    return image


def _import_pillow() -> tuple[Any, Any, Any]:
    """Return Image, ImageDraw and ImageFont of Pillow, of the extra `bench`."""
    try:
        from PIL import (  # noqa: PLC0415 # pyright: ignore[reportMissingImports]
            Image,
            ImageDraw,
            ImageFont,
        )
    except ImportError:
        raise SystemExit(f"--plot: PNG needs Pillow: {find_install_command('bench')}") from None
    return Image, ImageDraw, ImageFont


def _draw(plot: Plot) -> tuple[list[_Line], list[_Text]]:
    """Lay out axes, grid, lines and legend."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    first_x, last_x = plot.x[0], plot.x[-1]
    x_ticks = _ticks(first_x, last_x)
    y_ticks = _ticks(0, max(0.0, *(max(line) for line in plot.lines.values())))
    y_max = y_ticks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - first_x) / max(last_x - first_x, 1)
        return LEFT + across * (right - LEFT), bottom - y / y_max * (bottom - TOP)

    lines, texts = list[_Line](), [_Text(LEFT, 18, plot.title)]
    for tick in y_ticks:
        _, y = place(first_x, tick)
        lines.append(_Line([(LEFT, y), (right, y)], GRID, 1))
        texts.append(_Text(LEFT - 8, y + 4, f"{tick:g}", "end"))
    for tick in x_ticks:
        if first_x <= tick <= last_x:
            texts.append(_Text(place(tick, 0)[0], bottom + 18, f"{tick:g}", "middle"))
    texts.append(_Text((LEFT + right) / 2, HEIGHT - 10, plot.x_label, "middle"))
    texts.append(_Text(8, 36, plot.y_label))
    for number, (name, values) in enumerate(plot.lines.items()):
        color = COLORS[number % len(COLORS)]
        points = [place(*point) for point in zip(plot.x, values, strict=False)]
        lines.append(_Line(points, color, 1.5))
        y = TOP + 8 + 20 * number
        lines.append(_Line([(right + 16, y), (right + 40, y)], color, 3))
        texts.append(_Text(right + 48, y + 4, name))
    return lines, texts


def _ticks(low: float, high: float) -> list[float]:
    """Return two or more multiples of 1, 2 or 5 times a power of ten that cover `low` to `high`."""
    span = max(high - low, 1e-6)
    steps = (m * 10.0**exponent for exponent in range(-7, 15) for m in (1, 2, 5))
    step = next(step for step in steps if span / step <= TICKS_MAX)
    first = math.floor(low / step)
    last = max(math.ceil(high / step), first + 1)
    return [round(n * step, 9) for n in range(first, last + 1)]
