"""A program in a real terminal, whose screen a test reads as a person would."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte

DEADLINE_S = 30.0


class Terminal:
    """Runs a program on a pseudo-terminal, from `with` to the end of its block."""

    def __init__(
        self,
        words: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        columns: int = 80,
        lines: int = 24,
    ) -> None:
        self._words, self._folder = list(words), folder
        # The size is the terminal's, whatever the runner of the tests says of its own.
        inherited = {name: environment[name] for name in environment.keys() - {"COLUMNS", "LINES"}}
        self._environment = {**inherited, "TERM": "xterm-256color"}
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.heard = b""

    def __enter__(self) -> Terminal:
        self._terminal, child = pty.openpty()
        self._set_size(child)
        self.process = subprocess.Popen(
            self._words,
            cwd=self._folder,
            env=self._environment,
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
            preexec_fn=_own_terminal,  # noqa: PLW1509 - nothing else makes a terminal one's own
        )
        os.close(child)
        return self

    def __exit__(self, *_about: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()
        os.close(self._terminal)

    def _set_size(self, terminal: int) -> None:
        size = struct.pack("HHHH", self.screen.lines, self.screen.columns, 0, 0)
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, size)

    def resize(self, columns: int, lines: int) -> None:
        """Make the window another size, as a person with a mouse does."""
        self.screen.resize(lines, columns)
        self._set_size(self._terminal)

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._terminal, keys.encode())

    def read(self, seconds: float) -> bool:
        """Take in what the program draws within this time; whether it still runs."""
        ready, _, _ = select.select([self._terminal], [], [], seconds)
        if ready:
            try:
                data = os.read(self._terminal, 65_536)
            except OSError:  # the program ended
                return False
            self.heard += data
            self._stream.feed(data)
        return True

    def wait(self, seen: Callable[[str], bool], why: str) -> str:
        """Wait until the screen shows something; the screen."""
        ends = time.monotonic() + DEADLINE_S
        while not seen(self.text):
            assert time.monotonic() < ends, f"{why}: the screen is\n{self.text}"
            if not self.read(0.2) and not seen(self.text):
                raise AssertionError(f"{why}: the program ended, the screen is\n{self.text}")
        return self.text

    def end(self) -> int:
        """Wait for the end of the program; its exit code."""
        ends = time.monotonic() + DEADLINE_S
        while self.read(0.2):
            assert time.monotonic() < ends, self.text
        return self.process.wait(DEADLINE_S)

    @property
    def text(self) -> str:
        """What the screen shows."""
        return "\n".join(line.rstrip() for line in self.screen.display)


def _own_terminal() -> None:
    """In the child: the terminal is the one that Ctrl-C and sizes come from."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # tests that run in the background ignore it
