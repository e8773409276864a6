"""`onelog serve` in a process that begins with everything imported.

Hundreds of tests start a server, and most of a start is imports: here they are done once, and each
server is a fork of that. What a user starts is started by `tests/conformance/test_serve.py`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["onelog.app", "onelog.cli"])


class Fork:
    """The part of `subprocess.Popen` that tests use."""

    def __init__(
        self, arguments: Sequence[str], folder: Path, environment: Mapping[str, str], errors: Path
    ) -> None:
        heard, told = _forks.Pipe(duplex=False)
        with heard, told:
            self._process = _forks.Process(
                target=_run,
                args=(list(arguments), str(folder), dict(environment), told, str(errors)),
                daemon=True,
            )
            self._process.start()
            self.stdout = os.fdopen(os.dup(heard.fileno()), "rb", buffering=0)
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("onelog", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(
    arguments: list[str], folder: str, environment: dict[str, str], told: Connection, errors: str
) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    with told, open(errors, "ab") as file:  # noqa: PTH123 - its number is what is wanted
        os.dup2(told.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    from onelog.__main__ import main  # noqa: PLC0415 - after the environment is as it shall be

    sys.argv = ["onelog", *arguments]
    main()
