"""The lake process: all Parquet and table work of a broker, away from its interpreter.

Rules: it serves one socket and ends when that closes, also in the middle of a job. Jobs run in
threads; each answers for itself, and a job that fails ends nothing else. It runs at low priority.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec

from onelog.base import faults
from onelog.base.errors import OnelogError
from onelog.lake.jobs import (
    Ask,
    BringJob,
    CommitJob,
    ConvertJob,
    Job,
    JoinJob,
    LakeAnswer,
    LakeSettings,
    PingJob,
    RecoverJob,
    UpkeepJob,
    ask_decoder,
    settings_decoder,
)
from onelog.lake.process_link import receive
from onelog.lake.work import LakeWork

_HEAD: Final = struct.Struct("<I")
_NICE: Final = 5
_GONE: Final = 0


def do_job(work: LakeWork, ask: Ask) -> LakeAnswer:
    """Do a job and say how it ended."""
    handlers: dict[type[Job], Callable[..., LakeAnswer]] = {
        ConvertJob: work.convert,
        CommitJob: work.commit,
        RecoverJob: work.recover,
        BringJob: work.bring,
        JoinJob: work.join,
        UpkeepJob: work.upkeep,
        PingJob: work.ping,
    }
    try:
        with work.explained():
            found = handlers[type(ask.job)](ask.job)
    except OnelogError as error:
        return LakeAnswer(ask.number, type(error).__name__, str(error))
    except Exception as error:  # noqa: BLE001 - it is told to whoever asked
        return LakeAnswer(ask.number, type(error).__name__, f"{error!r:.2000}")
    return msgspec.structs.replace(found, number=ask.number)


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
    work = LakeWork(settings, Path(settings.folder))
    sending = threading.Lock()

    def run(ask: Ask) -> None:
        answer = msgspec.msgpack.encode(do_job(work, ask))
        with contextlib.suppress(OSError), sending:
            channel.sendall(_HEAD.pack(len(answer)) + answer)

    pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="lake")
    while (data := receive(channel)) is not None:
        pool.submit(run, ask_decoder.decode(data))
    os._exit(_GONE)  # the broker is gone: jobs under way are nobody's


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    with contextlib.suppress(ConnectionError), socket.socket(fileno=int(sys.argv[1])) as ours:
        serve(ours)
