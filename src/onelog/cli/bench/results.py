"""The figures of `onelog bench`: a table for people, rows for machines.

Rules: rows are those of the benchmarks of the repository (`bench/report.py`), so the same tools
read both. The table ends with what the generator itself took: a figure that it limits is not one of
the broker.
"""

from __future__ import annotations

from typing import Any, Final

from rich.table import Table
from rich.text import Text

from onelog.cli import render
from onelog.cli.bench.cases import WARM_S, Result

QUANTILES: Final = (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
LIMITED: Final = 0.9
"""A generator that used so much of a core was the limit."""


def rate_of(result: Result) -> float:
    """Messages a second, from end to end."""
    return result.measured.messages / result.measured.seconds


def share_of(result: Result) -> float:
    """How much of a core the generator used."""
    return result.measured.generator_s / result.measured.seconds


def broker_us(result: Result) -> float | None:
    """The broker's CPU of a message; the warm-up is in both, nearly in the same proportion."""
    if result.broker_s is None or not result.measured.messages:
        return None
    seconds = result.measured.seconds
    return result.broker_s * 1e6 * seconds / (seconds + WARM_S) / result.measured.messages


def rows_of(protocol: str, results: list[Result]) -> list[dict[str, Any]]:
    """One row for each figure."""
    rows = []
    for result in results:
        name = f"{protocol}, {result.case.name}"
        rows.append(_row(f"{name}: received", rate_of(result), "msg/s"))
        for label, share in QUANTILES:
            rows.append(
                _row(f"{name}: {label}", result.measured.quantile_us(share), "us", low=True)
            )
        spent = broker_us(result)
        if spent is not None:
            rows.append(_row(f"{name}: broker", spent, "us of CPU per message", low=True))
        rows.append(_row(f"{name}: generator", 100 * share_of(result), "% of a core", low=True))
        rows.append(_row(f"{name}: generator alone", result.alone, "msg/s"))
    return rows


def _row(name: str, value: float, unit: str, *, low: bool = False) -> dict[str, Any]:
    return {
        "name": name, "value": round(value, 4), "unit": unit, "bar": None, "holds": None,
        "low": low, "peer": None, "peer_value": None,
    }  # fmt: skip


def print_results(protocol: str, where: str, size: int, results: list[Result]) -> None:
    """A line for each case, then what the generator took."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", title_justify="left")
    table.add_column("case", no_wrap=True)
    titles = ["msg/s", *(f"{label} us" for label, _share in QUANTILES)]
    own = any(result.broker_s is not None for result in results)
    titles += [*(["broker us/msg"] if own else []), "generator", "alone msg/s"]
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for result in results:
        cells = [f"{rate_of(result):,.0f}"]
        cells += [f"{result.measured.quantile_us(share):,.0f}" for _label, share in QUANTILES]
        if own:
            cells.append(f"{broker_us(result) or 0:,.2f}")
        limited = share_of(result) >= LIMITED
        cells.append(f"{share_of(result):.0%}{' *' if limited else ''}")
        cells.append(f"{result.alone:,.0f}")
        table.add_row(Text(result.case.name), *cells)
    render.OUT.print(f"{protocol}, payloads of {size} B, {where}")
    render.print_whole(table)
    render.say(
        "The load comes from this process. generator: how much of a core it used; alone: what it"
        " could do without a broker."
    )
    if any(share_of(result) >= LIMITED for result in results):
        render.say("* The generator was the limit: the broker can do more than this.")
