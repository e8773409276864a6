"""The windows as a picture: a line for each device, a mark where a window is not normal."""

import itertools
from pathlib import Path
from typing import Any

from matplotlib import dates, rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLORS = ("#4269d0", "#b08900", "#3ca951", "#a463f2", "#e8590c", "#0c8599")
ALERT, INK, FAINT = "#c92a2a", "#212529", "#868e96"
HOT = 26
"""The limit of the pipeline's SQL above which a window is hot."""
STYLE = {
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": FAINT,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "svg.fonttype": "none",
    "svg.hashsalt": "iot",  # the same picture is the same file
}


def draw(windows: list[dict[str, Any]], *files: Path) -> None:
    """Draw the table into files; their endings say how."""
    with rc_context(STYLE):
        figure = Figure(figsize=(9, 4.5), layout="constrained")
        axes = figure.subplots()
        ends = [_line(axes, windows, *pair) for pair in enumerate(_devices(windows))]
        _name_lines(axes, ends)
        _mark_alerts(axes, [row for row in windows if row["anomaly"]])
        axes.axhline(HOT, color=ALERT, linewidth=0.8, linestyle=(0, (4, 4)), zorder=1)
        axes.annotate(
            f"hot above {HOT} °C", (0.005, HOT), xycoords=("axes fraction", "data"),
            xytext=(0, 3), textcoords="offset points", color=ALERT, fontsize=8,
        )  # fmt: skip
        axes.grid(axis="y", color="#e9ecef")
        axes.set_axisbelow(True)
        axes.yaxis.set_major_formatter("{x:.0f} °C")
        axes.xaxis.set_major_formatter(dates.DateFormatter("%H:%M:%S"))
        axes.margins(x=0.02)
        alerts = sum(row["anomaly"] is not None for row in windows)
        axes.set_title(
            f"{len(windows)} windows of ten seconds, {alerts} alerts",
            loc="left", fontsize=13, fontweight="bold", pad=24,
        )  # fmt: skip
        axes.text(
            0, 1.03, "mean temperature of each device, and from its lowest to its highest reading",
            transform=axes.transAxes, color=FAINT,
        )  # fmt: skip
        for file in files:
            told = {"Date": None} if file.suffix == ".svg" else None
            figure.savefig(file, dpi=160, metadata=told)


def _devices(windows: list[dict[str, Any]]) -> list[str]:
    return sorted({row["device"] for row in windows})


def _line(
    axes: Axes, windows: list[dict[str, Any]], number: int, device: str
) -> tuple[float, str, str, Any]:
    """Draw a device; where its line ends, its name and its color."""
    rows = sorted((one for one in windows if one["device"] == device), key=lambda one: one["began"])
    times, color = [row["began"] for row in rows], COLORS[number % len(COLORS)]
    lows, highs = [row["low"] for row in rows], [row["high"] for row in rows]
    axes.fill_between(times, lows, highs, color=color, alpha=0.12, linewidth=0, zorder=2)
    axes.plot(times, [row["mean"] for row in rows], color=color, linewidth=2, zorder=3)
    return rows[-1]["mean"], device, color, times[-1]


def _name_lines(axes: Axes, ends: list[tuple[float, str, str, Any]]) -> None:
    """Write each name at the end of its line; names that are too close push each other apart."""
    low, high = axes.get_ylim()
    room = (high - low) * 0.047
    ends = sorted(ends)
    places = [mean for mean, *_ in ends]
    for _ in range(100):
        for lower, upper in itertools.pairwise(range(len(places))):
            push = max(0.0, places[lower] + room - places[upper]) / 2
            places[lower] -= push
            places[upper] += push
    for place, (_, device, color, time) in zip(places, ends, strict=True):
        axes.annotate(
            device, (time, place), xytext=(10, 0), textcoords="offset points",
            color=color, fontweight="bold", va="center", annotation_clip=False,
        )  # fmt: skip


def _mark_alerts(axes: Axes, alerts: list[dict[str, Any]]) -> None:
    for row in alerts:
        axes.vlines(row["began"], row["mean"], row["high"], color=ALERT, linewidth=1, zorder=4)
        axes.plot(row["began"], row["high"], "o", color=ALERT, markersize=7, zorder=5)
        axes.annotate(
            f"{row['device']}: {row['anomaly']}, {row['high']:.1f} °C", (row["began"], row["high"]),
            xytext=(-9, 3), textcoords="offset points", color=ALERT, fontsize=9, ha="right",
        )  # fmt: skip
