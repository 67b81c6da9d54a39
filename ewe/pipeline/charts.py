"""The report's charts: matplotlib draws them, as SVG that takes fonts and colours from the page around it.

Text stays text, and colours are CSS variables, so one drawing serves light and dark, phone and desktop. The same
figures give the same bytes.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

# A colour in the drawing that stands for a variable of the page's style.
INK, MUTED, LINE, ONE, TWO, THREE = (f"#00000{digit}" for digit in range(1, 7))
_VARIABLES = {INK: "ink", MUTED: "muted", LINE: "line", ONE: "one", TWO: "two", THREE: "three"}
_STYLE: Any = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",  # measures the layout; comes with matplotlib
    "font.size": 12,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": LINE,
    "axes.labelsize": 12,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "axes.axisbelow": True,
    "lines.linewidth": 2,
    "figure.constrained_layout.use": True,
}


class Drawing:
    """One chart: its figure and axes while it is drawn, its SVG afterwards."""

    def __init__(self, figure: Figure) -> None:
        self.figure = figure
        self.axes: Axes = figure.add_subplot()
        self.svg = ""


@contextmanager
def _draw(name: str, describe: str, height: int = 260, width: int = 400) -> Iterator[Drawing]:
    """Yield an empty drawing; what the block draws becomes its SVG.

    Args:
        name: tells the chart's ids from other charts'.
        describe: what it shows, for those who cannot see it.
        height: in units; text is 12 of them high, so that it can be read on a phone.
        width: in the same units.
    """
    with mpl.rc_context():
        mpl.rcdefaults()  # whatever a user's own settings are
        mpl.rcParams.update(_STYLE | {"svg.hashsalt": name})
        drawing = Drawing(Figure(figsize=(width / 72, height / 72)))
        yield drawing
        text = io.StringIO()
        metadata = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        drawing.figure.savefig(text, format="svg", transparent=True, metadata=metadata)
    drawing.svg = _adapt(text.getvalue(), describe)


def _adapt(svg: str, describe: str) -> str:
    """Matplotlib's SVG file -> an element of the page: its variables for colours, its font, no ids but those in use."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', rf'\1 role="img" aria-label="{describe}"', svg, count=1)
    svg = re.sub(r"; font-family: [^;\"]*", "", svg)
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', svg))
    svg = re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var(--{variable})")
    return re.sub(r">\s+<", "><", re.sub(r"\s*\n\s*", " ", svg)).strip()


def short(value: float) -> str:
    """A number as an axis and a table say it: 1.05, 104, 12.6k, 1.91M."""
    for size, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:  # 999.7 is 1k
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


_SHORT = FuncFormatter(lambda value, _: short(value))


def _grid(axes: Axes, axis: Literal["x", "y", "both"] = "y") -> None:
    axes.grid(axis=axis, linewidth=0.8)
    axes.tick_params(length=0)
    axes.spines["left" if axis == "y" else "bottom"].set_visible(False)


def _log(axis: Axis, most: float, least: float = 1) -> None:
    """Ticks of a logarithmic axis up to `most`: 1, 10, 100, or 1, 2, 5, 10 where it is short."""
    steps = (1, 2, 5) if most < 60 * least else (1,)
    ticks = [step * 10.0**power for power in range(int(np.log10(most)) + 1) for step in steps]
    axis.set_major_locator(FixedLocator([0, *(tick for tick in ticks if tick <= most)]))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(_SHORT)


def rank_frequency(raw: Sequence[int], relabeled: Sequence[int]) -> str:
    """Patents with a label over the label's rank, both logarithmic, before and after relabeling; counts descend."""
    with _draw("rank", "Patents with each label, labels by rank, before and after relabeling") as drawing:
        axes = drawing.axes
        least, most, last = min(*raw, *relabeled), max(*raw, *relabeled), max(len(raw), len(relabeled))
        axes.loglog()
        _log(axes.yaxis, most, least)
        _log(axes.xaxis, last)
        axes.set_ylim(0.7 * least, 1.4 * most)
        axes.set_xlim(0.9, 1.3 * last)
        _grid(axes)
        for name, counts, colour, dashes in (("raw", raw, ONE, "-"), ("First / Later", relabeled, TWO, (0, (4, 1.5)))):
            axes.plot(np.arange(1, len(counts) + 1), counts, color=colour, label=name, linestyle=dashes)
        axes.set_xlabel("label's rank")
        axes.set_ylabel("patents")
        _legend_above(drawing)
    return drawing.svg


def first_later(subclasses: Sequence[Mapping[str, object]]) -> str:
    """Patents in which a subclass is first over patents in which it is later, a dot a subclass."""
    with _draw("first-later", "How often each subclass is first, over how often it is later", 300) as drawing:
        axes = drawing.axes
        names = [str(each["subclass"]) for each in subclasses]
        first, later = (np.array([each[key] for each in subclasses], float) for key in ("first", "later"))
        most = max(first.max(), later.max(), 2.0)
        for axis in "xy":
            getattr(axes, f"set_{axis}scale")("symlog", linthresh=1, linscale=0.4)
            _log(getattr(axes, f"{axis}axis"), most)
            getattr(axes, f"set_{axis}lim")(-0.2, most * 1.8)
        _grid(axes, "both")
        axes.plot([0, most], [0, most], color=MUTED, linewidth=1, linestyle=(0, (3, 2)))
        axes.scatter(later, first, s=16, color=ONE, alpha=0.55, linewidths=0)
        for index in _apart(later, first, most):
            axes.annotate(names[index], (later[index], first[index]), (5, 0), textcoords="offset points", va="center")
        axes.set_xlabel("patents where it is later")
        axes.set_ylabel("patents where it is first")
    return drawing.svg


def _apart(x: np.ndarray, y: np.ndarray, most: float) -> list[int]:
    """Indices of the largest points whose names do not run into each other."""
    across, up = (np.log1p(values) / np.log1p(most) for values in (x, y))
    chosen: list[int] = []
    for index in np.argsort(-(x + y), kind="stable")[:40]:
        if all(abs(across[index] - across[each]) > 0.16 or abs(up[index] - up[each]) > 0.07 for each in chosen):
            chosen.append(int(index))
    return chosen[:8]


def sections(shares: Mapping[str, Mapping[str, float]]) -> str:
    """A grid of years (rows) and sections (columns) with the percentage of each year's patents."""
    letters = sorted({section for year in shares.values() for section in year})
    describe = "Share of each section among the patents of each year, in percent"
    with _draw("sections", describe, 44 + 24 * len(shares)) as drawing:
        axes = drawing.axes
        most = max(share for year in shares.values() for share in year.values())
        for row, year in enumerate(shares.values()):
            for column, section in enumerate(letters):
                share = year.get(section, 0.0)
                cell = Rectangle((column, row), 0.94, 0.9, facecolor=ONE, alpha=0.6 * share / most, linewidth=0)
                axes.add_patch(cell)
                axes.text(column + 0.47, row + 0.47, f"{100 * share:.0f}" if share else "", ha="center", va="center")
        axes.set_xlim(0, len(letters))
        axes.set_ylim(len(shares), 0)
        axes.set_xticks(np.arange(len(letters)) + 0.47, letters)
        axes.set_yticks(np.arange(len(shares)) + 0.47, list(shares))
        axes.xaxis.tick_top()
        axes.tick_params(length=0, labelcolor=INK)
        axes.spines[:].set_visible(False)
    return drawing.svg


def histogram(name: str, counts: Sequence[int], width: int, cut: int, *, across: str, up: str) -> str:
    """Bars of which those beyond a cut have another colour.

    Args:
        name: of the chart.
        counts: of 1 to width, width + 1 to 2 width, ...; the last bin is open.
        width: of a bin.
        cut: the largest value that is kept.
        across: what is counted, with its unit.
        up: of what there are so many.
    """
    shown = len(counts)
    while shown > cut // width + 2 and sum(counts[shown - 1 :]) < 0.002 * sum(counts):
        shown -= 1
    values = np.array([*counts[: shown - 1], sum(counts[shown - 1 :])])
    edges = np.arange(shown + 1) * width + 0.5
    last = f"last bar: {(shown - 1) * width + 1:,} and more"
    with _draw(name, f"{up} by {across}", 215, 320) as drawing:
        axes = drawing.axes
        inside = int(np.searchsorted(edges, cut + 0.5))  # the edge at the cut, or the one after the bin it divides
        kept = values[:inside], [*edges[:inside], cut + 0.5]
        lost = values[inside - (edges[inside] > cut + 0.5) :], [cut + 0.5, *edges[edges > cut + 0.5]]
        for (heights, places), colour, label in ((kept, ONE, "kept whole"), (lost, TWO, "cut")):
            axes.stairs(heights, places, fill=True, color=colour, linewidth=0, label=label)
        axes.axvline(cut + 0.5, color=INK, linewidth=1.2)
        _grid(axes)
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.yaxis.set_major_formatter(_SHORT)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        axes.set_xlim(edges[0], edges[-1])
        axes.set_ylim(0, max(*values, 1) * 1.08)
        axes.set_xlabel(f"{across} ({last})")
        axes.set_ylabel(up)
        _legend_above(drawing)
    return drawing.svg


def _legend_above(drawing: Drawing) -> None:
    count = len(drawing.axes.get_legend_handles_labels()[0])
    drawing.figure.legend(frameon=False, loc="outside upper left", ncols=count, labelcolor=INK)


def moved(rows: Sequence[Mapping[str, object]], splits: Sequence[str]) -> str:
    """Share of First for the subclasses that moved most: a dot a split, a line between them."""
    describe = "Share of patents with this first subclass, by split, for those that moved most"
    with _draw("moved", describe, 56 + 22 * len(rows)) as drawing:
        axes = drawing.axes
        for place, row in enumerate(rows):
            shares = [100 * float(str(row[split])) for split in splits]
            axes.plot([min(shares), max(shares)], [place, place], color=LINE, linewidth=2, zorder=1)
        for split, colour, marker in zip(splits, (MUTED, ONE, TWO, THREE), "Dosv", strict=False):
            shares = [100 * float(str(row[split])) for row in rows]
            places = range(len(rows))
            axes.scatter(shares, places, s=38, color=colour, marker=marker, label=split, zorder=2, clip_on=False)
        axes.set_yticks(range(len(rows)), [str(row["subclass"]) for row in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(left=0)
        _grid(axes, "x")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", labelcolor=INK, pad=9)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}%"))
        _legend_above(drawing)
    return drawing.svg


def bars(name: str, describe: str, values: Mapping[str, int], colours: Mapping[str, str] | None = None) -> str:
    """Horizontal bars, each with its name and number."""
    with _draw(name, describe, 16 + 26 * len(values)) as drawing:
        axes = drawing.axes
        most = max([*values.values(), 1])
        for place, (label, value) in enumerate(values.items()):
            axes.barh(place, value, 0.72, color=(colours or {}).get(label, ONE), linewidth=0)
            axes.text(value + 0.015 * most, place, f"{value:,}", va="center")
        axes.set_xlim(0, most * 1.22)
        axes.set_yticks(range(len(values)), list(values))
        axes.set_ylim(len(values) - 0.5, -0.5)
        axes.set_xticks([])
        axes.tick_params(length=0, labelcolor=INK)
        axes.spines[:].set_visible(False)
    return drawing.svg
