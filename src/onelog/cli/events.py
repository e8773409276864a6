"""`onelog event follow`: live events of the server, a line each, until Ctrl-C.

Rules: JSON lines hold the event's name and the data, as the API sends them.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.text import Text

from onelog.base.errors import ConfigError
from onelog.cli import render
from onelog.cli.api.building import noun
from onelog.cli.api.showing import AsJson
from onelog.cli.places import HERE, Place, connected
from onelog.cli.printable import json_text, visible
from onelog.cli.tables import moment, show, size
from onelog.config.units import parse_quantity


def add_events(app: App) -> None:
    """Add the command to the tree."""
    noun(app, "event").command(follow)


def follow(
    filter: str = "",  # noqa: A002 - the word of the users
    /,
    *,
    interval: Annotated[str, Parameter(help="Time between two events of rates.")] = "1s",
    value_bytes: Annotated[int, Parameter(help="So much of each value is shown.")] = 200,
    count: Annotated[
        int | None, Parameter(name=["--count", "-n"], help="End after so many events.")
    ] = None,
    json: AsJson = False,
    place: Place = HERE,
) -> None:
    """Follow live events: rates, alarms and, with a filter, messages.

    Parameters
    ----------
    filter
        Also show the messages of this topic or filter, as in: onelog event follow 'sensors/#'.
    """
    try:
        interval_ms = parse_quantity(interval, "ms")
    except ValueError as error:
        raise ConfigError(f"--interval: {error}") from None
    query: dict[str, Any] = {"interval_ms": interval_ms, "value_bytes": value_bytes}
    if filter:
        query["filter"] = filter
    with connected(place) as client:
        for number, (name, data) in enumerate(client.events("/events", query), 1):
            if json:
                sys.stdout.write(json_text({"event": name, "data": data}) + "\n")
                sys.stdout.flush()
            else:
                render.OUT.print(_line(name, data), soft_wrap=True)
            if number == count:
                return


def _line(name: str, data: dict[str, Any]) -> Text:
    if name == "rates":
        return Text(f"{moment(data['time_ms'])[11:]}  rates    {rates_text(data['rates'])}")
    if name == "message":
        return Text(f"{moment(data['timestamp_ms'])[11:]}  message  {_message(data)}")
    if name == "alarms":
        rows = "; ".join(
            f"{row['kind']} at {row['place']}: {row['error']}" for row in data["alarms"]
        )
        told = f"{data['status']}{': ' if rows else ''}{rows}"
        return Text(f"          alarms   {visible(told)}", "red" if rows else "")
    return Text(f"          {visible(name):<8} {show(data)}", "yellow")


def rates_text(rates: dict[str, Any]) -> str:
    """Rates per second, in one line."""
    parts = [
        f"published {_rate(rates['published_messages'])}/s",
        f"syncs {_rate(rates['syncs'])}/s",
    ]
    for name, row in rates["protocols"].items():
        parts.append(
            f"{visible(name)} in {_rate(row['received_messages'])}/s"
            f" {size(row['received_bytes'] or 0)}/s, out {size(row['sent_bytes'] or 0)}/s"
        )
    return "; ".join(parts)


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"


def _message(data: dict[str, Any]) -> str:
    if data["value_text"] is not None:
        value = visible(data["value_text"])
    elif data["value_base64"] is not None:
        value = f"base64:{data['value_base64']}"
    else:
        value = "(null)"
    more = f" … ({data['value_bytes']:,} bytes)" if data["truncated"] else ""
    return f"{visible(data['topic'])}  {value}{more}"
