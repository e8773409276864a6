"""The windows as a picture: a line for each device, a mark where a window is not normal."""

from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 860, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 130, 50, 50
COLORS = ("#4269d0", "#efb118", "#3ca951", "#a463f2", "#ff725c", "#6cc5b0")
ALERT = "#d00000"


def draw(windows: list[dict[str, Any]], file: Path) -> None:
    times = sorted({row["began"] for row in windows})
    values = [row[key] for row in windows for key in ("mean", "high")]
    low, high = 5 * (min(values) // 5), 5 * (max(values) // 5 + 1)
    span = (times[-1] - times[0]).total_seconds() or 1.0

    def x(time: datetime) -> float:
        return LEFT + (time - times[0]).total_seconds() / span * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (value - low) / (high - low) * (HEIGHT - TOP - BOTTOM)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="16">Mean temperature of 10 seconds, and alerts</text>',
    ]
    step = 5 if high - low <= 50 else 10
    out += [
        f'<path d="M{LEFT} {y(value):.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>'
        f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value} °C</text>'
        for value in range(int(low), int(high) + 1, step)
    ]
    out += [
        f'<text x="{x(time):.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">'
        f"{time:%H:%M:%S}</text>"
        for time in times[::2]
    ]
    devices = sorted({row["device"] for row in windows})
    for number, device in enumerate(devices):
        color = COLORS[number % len(COLORS)]
        rows = sorted(
            (row for row in windows if row["device"] == device), key=lambda row: row["began"]
        )
        points = " ".join(f"{x(row['began']):.1f},{y(row['mean']):.1f}" for row in rows)
        out.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        legend = TOP + 10 + number * 20
        out.append(
            f'<path d="M{WIDTH - RIGHT + 15} {legend}h20" stroke="{color}" stroke-width="2"/>'
            f'<text x="{WIDTH - RIGHT + 42}" y="{legend + 4}">{escape(device)}</text>'
        )
        for row in rows:
            if row["anomaly"]:
                at, top = x(row["began"]), y(row["high"])
                out.append(
                    f'<path d="M{at:.1f} {y(row["mean"]):.1f}V{top:.1f}" stroke="{ALERT}"'
                    f' stroke-dasharray="3 2"/><circle cx="{at:.1f}" cy="{top:.1f}" r="5"'
                    f' fill="{ALERT}"><title>{escape(row["anomaly"])}</title></circle>'
                )
    legend = TOP + 10 + len(devices) * 20
    out.append(
        f'<circle cx="{WIDTH - RIGHT + 25}" cy="{legend}" r="5" fill="{ALERT}"/>'
        f'<text x="{WIDTH - RIGHT + 42}" y="{legend + 4}">alert (highest)</text></svg>'
    )
    file.write_text("\n".join(out), encoding="utf-8")
