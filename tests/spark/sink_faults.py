"""Sinks that fail where a test says: the product's own writer, in processes that die.

A test leaves a file in the folder `faults`; who finds it takes it away and does what it is named
after. So each fault comes once, whichever process meets it.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from pyspark import TaskContext

from onelog.spark.datasource import OnelogSource
from onelog.spark.sink import sink_options, stream_writer
from onelog.spark.sink.writers import Staged, StreamWriter

FAULTS = "faults"


def due(folder: str, name: str) -> bool:
    """Whether it is time for a fault; then it is over."""
    try:
        (Path(folder) / name).unlink()
    except FileNotFoundError:
        return False
    return True


def ancestors() -> list[int]:
    """The processes above this one, the next first, up to the one that runs the tests."""
    found, pid = [], os.getpid()
    while True:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        pid = int(stat[1])
        if pid <= 1:
            return found
        found.append(pid)


def kill_jvm() -> None:
    """Kill the Java process that this Python process works for, and this one."""
    for pid in ancestors():
        if Path(f"/proc/{pid}/comm").read_text().strip() == "java":
            os.kill(pid, signal.SIGKILL)
            break
    os.kill(os.getpid(), signal.SIGKILL)


class FaultyWriter(StreamWriter):
    """As the product's, and dies."""

    folder: str

    def commit(self, messages: Any, batchId: int) -> None:
        if due(self.folder, "commit-dies-before"):
            os._exit(9)
        if due(self.folder, "driver-dies-before-commit"):
            kill_jvm()
        super().commit(messages, batchId)
        if due(self.folder, "commit-dies-after"):
            os._exit(9)
        if due(self.folder, "driver-dies-after-commit"):
            kill_jvm()

    def write(self, iterator: Any) -> Staged:
        return super().write(self._watched(iterator))

    def _watched(self, iterator: Any) -> Any:
        context = TaskContext.get()
        assert context is not None
        for batch in iterator:
            yield batch
            if due(self.folder, "task-fails"):
                raise RuntimeError("a task fails")
            if due(self.folder, "worker-dies"):
                os._exit(9)
            if due(self.folder, "executor-dies"):
                kill_jvm()


class FaultySource(OnelogSource):
    """`format("onelog-faulty")`, with the option `faults`."""

    @classmethod
    def name(cls) -> str:
        return "onelog-faulty"

    def streamWriter(self, schema: Any, overwrite: bool) -> StreamWriter:
        options = {name: value for name, value in self.options.items() if name.lower() != FAULTS}
        made = stream_writer(sink_options(options), schema, overwrite=overwrite)
        writer = FaultyWriter(made._options, made._layout)
        writer.folder = self.options[FAULTS]
        return writer
