"""The full screen of `onelog top`: it is drawn when events, a key or another size come.

Rules: the terminal gets back what it was, however the view ends. While it is paused, what comes is
taken in and not drawn.
"""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from rich.live import Live

from onelog.cli import render
from onelog.cli.top.feed import Feed
from onelog.cli.top.screen import picture

_SEQUENCE: Final = re.compile("\x1b(\\[[0-9;?]*[ -/]*[@-~]|O.)?")


def run_live(feed: Feed, count: int | None) -> None:
    """Show the view until a key or the count ends it."""
    keys, board, pictures = sys.stdin.fileno(), feed.board, 0
    with (
        _single_keys(keys),
        _resizing(feed),
        Live(console=render.OUT, screen=True, auto_refresh=False) as live,
    ):
        while True:
            width, height = render.OUT.size
            if not board.paused:
                live.update(picture(board, width, height), refresh=True)
            ready, _, _ = select.select([keys, feed.wake], [], [])
            was_paused = board.paused
            if keys in ready:
                pressed = os.read(keys, 64).decode(errors="replace")
                if not pressed or any(board.press(key) for key in _plain(pressed)):
                    return
            if board.paused and not was_paused:
                live.update(picture(board, width, height), refresh=True)
            if feed.wake in ready and feed.take(0) and board.is_whole:
                pictures += 1
                if pictures == count:
                    live.update(picture(board, width, height), refresh=True)
                    return


def _plain(pressed: str) -> str:
    """Keys that are one character; an arrow or the like is a sequence, and means nothing here."""
    return _SEQUENCE.sub("", pressed)


@contextmanager
def _single_keys(terminal: int) -> Iterator[None]:
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


@contextmanager
def _resizing(feed: Feed) -> Iterator[None]:
    def resized(_number: int, _frame: FrameType | None) -> None:
        feed.stir()

    before = signal.signal(signal.SIGWINCH, resized)
    try:
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
