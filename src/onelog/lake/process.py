"""The lake process: all Parquet and table work of a broker, away from its interpreter.

Rules: it serves one socket and ends when that closes, also in the middle of a job. Jobs run in
threads; each answers for itself, and a job that fails ends nothing else. It runs at low priority.
Readers wait for no library of tables: only the first job that writes or looks at a table does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import struct
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from onelog.base import faults
from onelog.base.errors import OnelogError
from onelog.lake.brought_files import BroughtFiles
from onelog.lake.jobs import (
    AnyJob,
    Ask,
    BringJob,
    LakeAnswer,
    LakeSettings,
    PingJob,
    ask_decoder,
    settings_decoder,
)
from onelog.lake.process_link import receive

if TYPE_CHECKING:
    from onelog.lake.work import LakeWork

_HEAD: Final = struct.Struct("<I")
_NICE: Final = 5
_GONE: Final = 0


class LakeJobs:
    """Does jobs. Any thread may call it."""

    def __init__(self, settings: LakeSettings) -> None:
        """Empties the folder of files that are made."""
        folder = Path(settings.folder)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        self._settings = settings
        self._readers = BroughtFiles(settings)
        self._making = threading.Lock()
        self._work: LakeWork | None = None

    def do(self, ask: Ask) -> LakeAnswer:
        """Do a job and say how it ended."""
        try:
            with self._readers.access().explained(self._settings.url):
                found = self._done(ask.job)
        except OnelogError as error:
            return LakeAnswer(ask.number, type(error).__name__, str(error))
        except Exception as error:  # noqa: BLE001 - it is told to whoever asked
            return LakeAnswer(ask.number, type(error).__name__, f"{error!r:.2000}")
        return msgspec.structs.replace(found, number=ask.number)

    def _done(self, job: AnyJob) -> LakeAnswer:
        if isinstance(job, BringJob):
            return self._readers.bring(job)
        if isinstance(job, PingJob):
            return LakeAnswer(0, "", "")
        return self._tables().do(job)

    def _tables(self) -> LakeWork:
        """Who knows tables. Their libraries are imported for the first job that needs them."""
        with self._making:
            if self._work is None:
                from onelog.lake.work import LakeWork  # noqa: PLC0415 - it takes a second

                self._work = LakeWork(self._settings, self._readers)
            return self._work


def serve(channel: socket.socket) -> None:
    """Do what the broker asks, until it closes the socket."""
    data = receive(channel)
    if data is None:
        return
    settings: LakeSettings = settings_decoder.decode(data)
    if settings.faults:
        faults.arm_from_environment(settings.faults)
    # Of every column without statistics, which we leave out on purpose, it would write a line.
    logging.getLogger("pyiceberg").setLevel(logging.ERROR)
    jobs = LakeJobs(settings)
    sending = threading.Lock()

    def run(ask: Ask) -> None:
        answer = msgspec.msgpack.encode(jobs.do(ask))
        with contextlib.suppress(OSError), sending:
            channel.sendall(_HEAD.pack(len(answer)) + answer)

    pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="lake")
    while (data := receive(channel)) is not None:
        ask = ask_decoder.decode(data)
        if isinstance(ask.job, PingJob):
            run(ask)  # a sign of life, however many jobs wait
        else:
            pool.submit(run, ask)
    os._exit(_GONE)  # the broker is gone: jobs under way are nobody's


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    with contextlib.suppress(ConnectionError), socket.socket(fileno=int(sys.argv[1])) as ours:
        serve(ours)
