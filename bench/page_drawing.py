"""Pictures of the benchmarks' page: both sides of each case on one line, and curves of growth.

Rules: figures with the same unit share a panel, and its axis is logarithmic: a distance is a ratio.
The pictures have no background, and their colours are as far from black as from white, so they are
readable on both. Text stays text, and nothing in a file depends on the time or on chance.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from bench.page_growth import Curve
from bench.page_rows import Figure, number, times_text

TEXT, LINE = "#7a7f87", "#9aa0a833"
OURS, PEER, SELF = "#1590a6", "#e07b1f", "#8e8e96"
GOOD, BAD = "#2f9e5b", "#e0483e"
WIDTH_IN, NAME_IN, CASE_IN, PANEL_IN = 9.0, 3.7, 0.235, 0.62
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "onelog",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": TEXT,
    "axes.edgecolor": TEXT,
    "axes.labelcolor": TEXT,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
}
NAME_CHARS_MAX = 56


def drawable(figures: Sequence[Figure]) -> list[Figure]:
    """Cases with something beside ours: another side, or a bar."""
    return [
        one
        for one in figures
        if 0 < one.ours < float("inf") and ((one.theirs or 0) > 0 or (one.bar or 0) > 0)
    ]


def draw_cases(path: Path, figures: Sequence[Figure]) -> None:
    """One picture of a benchmark: a panel for each unit."""
    panels: dict[str, list[Figure]] = {}
    for one in drawable(figures):
        panels.setdefault(one.unit, []).append(one)
    heights = [len(rows) * CASE_IN + PANEL_IN for rows in panels.values()]
    with mpl.rc_context(STYLE):
        top_in = 0.4
        total_in = sum(heights) + top_in
        picture = Picture(figsize=(WIDTH_IN, total_in))
        picture.patch.set_alpha(0)
        above_in = top_in
        for (unit, rows), height in zip(panels.items(), heights, strict=True):
            bottom = 1 - (above_in + height - 0.28) / total_in
            size = (height - PANEL_IN) / total_in
            width = (WIDTH_IN - NAME_IN - 0.75) / WIDTH_IN
            axes = picture.add_axes((NAME_IN / WIDTH_IN, bottom, width, size))
            _panel(axes, unit, rows)
            above_in += height
        _legend(picture, figures, 1 - 0.06 / total_in)
        _save(picture, path)


def _panel(axes: Axes, unit: str, rows: list[Figure]) -> None:
    axes.patch.set_alpha(0)
    axes.set_xscale("log")
    for at, one in enumerate(rows):
        side = PEER if one.is_peer else SELF
        ends = [value for value in (one.ours, one.theirs) if value]
        axes.plot(ends, [at] * len(ends), color=LINE[:7], lw=1.6, alpha=0.5, zorder=1)
        if one.theirs:
            axes.plot(one.theirs, at, "o", color=side, ms=6, zorder=2)
        axes.plot(one.ours, at, "o", color=OURS, ms=6.5, zorder=3)
        if one.bar:
            axes.plot(one.bar, at, "|", color=TEXT, ms=9, mew=1.4, zorder=2)
        times = one.times
        bad = one.is_behind or one.holds is False
        if times is not None:
            axes.text(
                1.015, at, times_text(times), transform=axes.get_yaxis_transform(), va="center",
                color=BAD if bad else GOOD if times > 1 else TEXT, fontsize=9,
            )  # fmt: skip
        elif one.holds is not None:
            axes.text(
                1.015, at, number(one.ours), transform=axes.get_yaxis_transform(), va="center",
                color=BAD if bad else TEXT, fontsize=9,
            )  # fmt: skip
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks(range(len(rows)), [_cut(one.name) for one in rows])
    axes.tick_params(axis="y", length=0)
    _numbers(axes)
    better = "less is better" if rows[0].is_low else "more is better"
    axes.set_title(f"{unit} ({better})", fontsize=9, loc="left", pad=4, color=TEXT, weight="bold")


def _numbers(axes: Axes) -> None:
    low, high = axes.get_xlim()
    few = high / low < 30
    axes.set_xlim(low / 1.15, high * 1.15)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,), numticks=9))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _at: number(value)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="x", color=LINE[:7], alpha=0.25, lw=0.7)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _cut(name: str) -> str:
    return name if len(name) <= NAME_CHARS_MAX else name[: NAME_CHARS_MAX - 1] + "…"


def _legend(picture: Picture, figures: Sequence[Figure], top: float) -> None:
    shown = drawable(figures)
    peers = dict.fromkeys(one.side for one in shown if one.is_peer and one.theirs)
    marks = [_dot(OURS, "OneLog")]
    if peers:
        marks.append(_dot(PEER, " / ".join(peers) if len(peers) < 4 else "the peer of the row"))
    if any(one.theirs and not one.is_peer for one in shown):
        marks.append(_dot(SELF, "OneLog otherwise (see the table)"))
    if any(one.bar for one in shown):
        marks.append(Line2D([], [], ls="", marker="|", color=TEXT, ms=9, mew=1.4, label="bar"))
    picture.legend(
        handles=marks, loc="upper left", bbox_to_anchor=(0.0, top), ncols=4, frameon=False,
        fontsize=9, handletextpad=0.2, columnspacing=1.4, borderpad=0,
    )  # fmt: skip


def _dot(color: str, label: str) -> Line2D:
    return Line2D([], [], ls="", marker="o", color=color, ms=6.5, label=label)


def draw_growth(path: Path, curves: Sequence[Curve]) -> None:
    """A panel for each thing that grows: CPU of a message, and the median time on its way."""
    kinds = list(dict.fromkeys(curve.kind for curve in curves))
    with mpl.rc_context(STYLE):
        picture = Picture(figsize=(WIDTH_IN, 2.35 * len(kinds)), layout="constrained")
        picture.patch.set_alpha(0)
        grid = picture.subplots(len(kinds), 2, squeeze=False)
        for row, kind in zip(grid, kinds, strict=True):
            units = dict.fromkeys(curve.unit for curve in curves if curve.kind == kind)
            for axes, unit in zip(row, units, strict=False):
                mine = [one for one in curves if one.kind == kind and one.unit == unit]
                _curves(axes, kind, unit, mine)
            for axes in row[len(units) :]:
                axes.set_visible(False)
        _save(picture, path)


def _curves(axes: Axes, kind: str, unit: str, curves: Sequence[Curve]) -> None:
    axes.patch.set_alpha(0)
    axes.set_xscale("log")
    axes.set_yscale("log")
    for curve in curves:
        color = OURS if curve.side == "OneLog" else PEER
        axes.plot(*zip(*curve.points, strict=True), "o-", color=color, ms=4.5, label=curve.side)
    low, high = axes.get_ylim()
    middle = (low * high) ** 0.5
    axes.set_ylim(min(low, middle / 4), max(high, middle * 4))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _at: number(value)))
        axis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=9))
    axes.grid(color=LINE[:7], alpha=0.25, lw=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(kind, fontsize=9, loc="left", color=TEXT, weight="bold")
    axes.set_ylabel(unit, fontsize=8)
    axes.legend(frameon=False, fontsize=8, loc="best")


def _save(picture: Picture, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(
        path, format=path.suffix[1:], metadata=_NOTHING if path.suffix == ".svg" else {}
    )


_NOTHING = {"Date": None, "Creator": None}
