"""One run of a pipeline, of either kind: the lock, the signals, and the reported state.

Rules: SIGTERM and Ctrl-C end a run in order; kill -9 does no harm, because the next run goes on
from the checkpoint. How it ended is written down before the caller hears of it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import msgspec

from onelog.base.errors import OnelogError
from onelog.pipelines.failures import PipelineFailed, told
from onelog.pipelines.progress import Progress
from onelog.pipelines.state import State, Status
from onelog.spark.masters import shown

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

OnProgress = Callable[[Mapping[str, Progress]], None]
Ending = Literal["done", "stopped"]


def new_status(name: str, file: Path, master: str, mode: str) -> Status:
    """A run of this process that begins now."""
    return Status(
        name=name,
        file=str(file.absolute()),
        master=shown(master),
        mode=mode,
        pid=os.getpid(),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def attempt(
    state: State, status: Status, on_progress: OnProgress, work: Callable[[OnProgress], Ending]
) -> Ending:
    """Run a pipeline, unless another process runs it. Raises PipelineFailed, Conflict."""
    with state.held():
        told_last = status
        state.save(told_last)

        def seen(progress: Mapping[str, Progress]) -> None:
            nonlocal told_last
            told_last = msgspec.structs.replace(told_last, phase="running", targets=dict(progress))
            state.save(told_last)
            on_progress(progress)

        try:
            ending = work(seen)
        except KeyboardInterrupt:
            state.save(msgspec.structs.replace(told_last, phase="stopped"))
            raise
        except Exception as error:
            state.save(msgspec.structs.replace(told_last, phase="failed", error=told(error)))
            if isinstance(error, OnelogError):
                raise
            raise PipelineFailed(f"{told(error)}; Spark's own log is {state.log}") from error
        state.save(msgspec.structs.replace(told_last, phase=ending))
        return ending


def interrupt() -> None:
    """The effect of a signal while there is nothing yet to end in order."""
    raise KeyboardInterrupt


@contextlib.contextmanager
def told_to_stop(stop: Callable[[], None]) -> Iterator[None]:
    """Set the effect of signals for the block, and restore it afterwards."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number in SIGNALS:
        signal.signal(number, lambda *_: stop())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
