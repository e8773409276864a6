"""`onelog top`: a live view of rates, lag, connections, disk and alarms.

Rules: rates, alarms and the sample of messages come as server-sent events; only lists and the disk
are asked for, in bounded pieces. Keys work at once. Without a terminal it prints one picture, or
JSON lines.
"""

from __future__ import annotations

import sys
from typing import Annotated, Final

from cyclopts import App, Parameter

from onelog.base.errors import ConfigError
from onelog.cli import render
from onelog.cli.api.showing import AsJson
from onelog.cli.places import HERE, Place
from onelog.cli.printable import json_text

INTERVAL_MIN_S: Final = 0.25
INTERVAL_MAX_S: Final = 60.0
_PICTURES: Final = 2
"""Events of rates before a picture without a terminal: the first one knows no rates yet."""


def add_top(app: App) -> None:
    """Add the command to the tree."""
    app.command(top)


def top(
    *,
    interval: Annotated[float, Parameter(help="Seconds between two pictures.")] = 1.0,
    count: Annotated[
        int | None, Parameter(name=["--count", "-n"], help="End after so many pictures.")
    ] = None,
    json: AsJson = False,
    place: Place = HERE,
) -> None:
    """Watch the server live: rates per protocol, busiest topics, lag of cursors, disk, alarms.

    Keys: q quits, s sorts the cursors otherwise, t the topics, p pauses.
    """
    if not INTERVAL_MIN_S <= interval <= INTERVAL_MAX_S:
        raise ConfigError(f"--interval {interval}: {INTERVAL_MIN_S} to {INTERVAL_MAX_S:g} seconds")
    if count is not None and count < 1:
        raise ConfigError(f"--count {count}: at least 1")
    # Only this command needs them, and every other one starts faster without.
    from onelog.cli.top.feed import Feed  # noqa: PLC0415
    from onelog.cli.top.live import run_live  # noqa: PLC0415

    with Feed(place.target(), interval) as feed:
        if json or not (sys.stdout.isatty() and sys.stdin.isatty()):
            _print(feed, count, json=json)
        else:
            run_live(feed, count)


def _print(feed: object, count: int | None, *, json: bool) -> None:
    from onelog.cli.top.feed import Feed  # noqa: PLC0415
    from onelog.cli.top.screen import picture  # noqa: PLC0415

    assert isinstance(feed, Feed)
    ends = count if json else _PICTURES
    pictures = 0
    while ends is None or pictures < ends:
        if not feed.take(None) or not feed.board.is_whole:
            continue
        pictures += 1
        if json:
            sys.stdout.write(json_text(feed.board.document()) + "\n")
            sys.stdout.flush()
    if not json:
        render.OUT.print(picture(feed.board, render.OUT.width, None))
