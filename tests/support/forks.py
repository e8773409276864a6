"""Processes that begin with everything imported.

Hundreds of tests start a broker in a process of its own, and most of such a start is imports: here
they are done once, and each process is a fork of that. What a user starts is started by
`tests/conformance/test_serve.py`.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
forks = multiprocessing.get_context("forkserver")
forks.set_forkserver_preload(
    ["onelog.app", "onelog.cli", "pytest", "tests.support.amqp", "tests.support.mqtt"]
)  # pytest: a fork of `python -m pytest` begins with the main module of that


def begin(target: Callable[..., None], *arguments: Any) -> ForkServerProcess:
    """Run a function of a module in a process of its own, which ends with this one."""
    process = forks.Process(target=target, args=arguments, daemon=True)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{ROOT / 'src'}{os.pathsep}{ROOT}"  # for what is forked from
    try:
        process.start()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return process


class Fork:
    """A process whose output is read, with the part of `subprocess.Popen` that tests use."""

    def __init__(
        self,
        target: Callable[..., None],
        *arguments: Any,
        errors: Path | None = None,
        folder: Path = ROOT,
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        heard, told = forks.Pipe(duplex=False)
        with heard, told:
            place = (str(folder), dict(environment), None if errors is None else str(errors))
            self._process = begin(_run, target, arguments, told, *place)
            self.stdout = os.fdopen(os.dup(heard.fileno()), "rb")
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("a fork", timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(
    target: Callable[..., None],
    arguments: tuple[Any, ...],
    told: Connection,
    folder: str,
    environment: dict[str, str],
    errors: str | None,
) -> None:
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    with told:
        os.dup2(told.fileno(), sys.stdout.fileno())
    if errors is not None:
        with Path(errors).open("ab") as file:
            os.dup2(file.fileno(), sys.stderr.fileno())
    target(*arguments)


def run_onelog(
    *arguments: str,
    folder: Path = ROOT,
    environment: Mapping[str, str] = os.environ,
    given: bytes = b"",
    timeout_s: float = 60.0,
) -> subprocess.CompletedProcess[bytes]:
    """Run the command to its end, as `subprocess.run` does with `capture_output`."""
    with tempfile.TemporaryDirectory() as place:
        output, errors = Path(place, "output"), Path(place, "errors")
        process = Fork(
            _onelog_into,
            str(output),
            given,
            arguments,
            errors=errors,
            folder=folder,
            environment=environment,
        )
        with process.stdout:
            try:
                code = process.wait(timeout_s)
            finally:
                process.kill()
        return subprocess.CompletedProcess(
            arguments, code, output.read_bytes(), errors.read_bytes()
        )


def _onelog_into(output: str, given: bytes, arguments: tuple[str, ...]) -> None:
    with Path(output).open("ab") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
    sys.stdin = io.TextIOWrapper(io.BytesIO(given))
    onelog(*arguments)


def onelog(*arguments: str) -> None:
    """The command, as `python -m onelog` runs it."""
    from onelog.__main__ import main  # noqa: PLC0415 - not needed by who starts it

    sys.argv = ["onelog", *arguments]
    main()
