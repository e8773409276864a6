"""A judge in a process of its own, so that a large compaction leaves the interpreter to messages.

Rules:
- The helper gets stored bytes over a socket and sends back bytes to store; files, offsets and the
  swap stay with the broker. So a broker or a helper that dies leaves the same files as any crash.
- It is spawned for one pass and ends with it, or when the broker is gone. It runs at low priority.
- The bytes that it sends are checked like any append: CRC, then offsets (I9).
- When it dies or does not answer, `HelperLost` is raised: the segments at hand stay as they were,
  and a thread can make the pass.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import msgspec

from onelog.base.errors import Closed, CorruptBatch, OnelogError, Unavailable
from onelog.kernel import scan_batches
from onelog.log.judging import FindJudge, Judge, JudgeJob, Mapped, ThreadJudge
from onelog.log.rewriting import Pace, Rewritten

ANSWER_S_MAX: Final = 30.0
"""A helper that takes longer for one slice counts as lost."""
SLICE_BYTES: Final = 128 * 1024
"""Small, so that the broker's share of the work on one slice is short."""
_NICE: Final = 10

_JOB, _MAP, _CLEAN = range(3)
_DONE, _CORRUPT, _FAILED = range(3)
_FRAME: Final = struct.Struct(">BI")  # kind of frame, bytes that follow
_MAPPED: Final = struct.Struct(">q?")
_CLEAN_HEAD: Final = struct.Struct(">q")  # covered
_CLEANED: Final = struct.Struct(">q?qq")  # next offset, changed, records dropped, next horizon
_decoder: Final = msgspec.msgpack.Decoder(JudgeJob)


class HelperLost(Unavailable):
    """The helper process could not be started, died, or does not answer."""


# -- the broker's side


def judge_for(bytes_min: int, stop: threading.Event) -> FindJudge:
    """A helper judges passes over at least `bytes_min` bytes, the thread all others; 0: all in the
    thread."""

    def find(job: JudgeJob, pace: Pace, size_bytes: int) -> Judge:
        if bytes_min and size_bytes >= bytes_min:
            return HelperJudge(job, stop)
        return ThreadJudge(job, pace)

    return find


class HelperJudge:
    """A judge that asks a process of its own; see `Judge`."""

    __slots__ = (
        "_channel", "_process", "_stop", "covered", "next_horizon_ms", "read_bytes",
        "records_dropped",
    )  # fmt: skip

    def __init__(self, job: JudgeJob, stop: threading.Event) -> None:
        self.read_bytes = SLICE_BYTES
        self.covered = 0
        self.records_dropped = 0
        self.next_horizon_ms = -1
        self._stop = stop
        self._channel, theirs = socket.socketpair()
        self._channel.settimeout(ANSWER_S_MAX)
        try:
            with theirs:
                self._process = _spawn(theirs.fileno())
        except OSError as error:
            self._channel.close()
            raise HelperLost(f"no helper process can be started: {error}") from error
        try:
            self._ask(_JOB, msgspec.msgpack.encode(job))
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def map(self, data: memoryview) -> Mapped:
        """Note the keys of whole batches. Raises CorruptBatch, HelperLost, Closed."""
        return Mapped(*_MAPPED.unpack(self._ask(_MAP, data)))

    def clean(self, data: memoryview) -> Rewritten:
        """What stays of whole batches. Raises CorruptBatch, HelperLost, Closed."""
        answer = memoryview(self._ask(_CLEAN, _CLEAN_HEAD.pack(self.covered), data))
        next_offset, changed, dropped, horizon_ms = _CLEANED.unpack_from(answer)
        self.records_dropped, self.next_horizon_ms = dropped, horizon_ms
        kept = answer[_CLEANED.size :]
        return Rewritten(kept, scan_batches(kept), changed, next_offset)

    def _ask(self, what: int, *parts: bytes | memoryview) -> bytearray:
        if self._stop.is_set():
            raise Closed("rewriting was asked to stop; the log is as it was")
        try:
            _send(self._channel, what, *parts)
            answered = _receive(self._channel)
        except OSError as error:  # a time-out is an OSError, too
            raise HelperLost(f"the helper process does not answer: {error!r}") from error
        if answered is None:
            raise HelperLost("the helper process died")
        state, answer = answered
        if state == _CORRUPT:
            raise CorruptBatch(answer.decode())
        if state == _FAILED:
            raise HelperLost(f"the helper process failed: {answer.decode()}")
        return answer

    def close(self) -> None:
        """End the process, also in the middle of its work."""
        self._channel.close()
        self._process.kill()
        self._process.wait()


def _spawn(file_descriptor: int) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return subprocess.Popen(  # noqa: S603 - our own interpreter and module
        # -P: Python never imports from the current folder.
        [sys.executable, "-P", "-m", "onelog.log.judge_process", str(file_descriptor)],
        stdin=subprocess.DEVNULL,
        pass_fds=[file_descriptor],
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,  # Ctrl-C is for the broker, which then ends the helper
    )


# -- the helper's side


def serve(channel: socket.socket) -> None:
    """Judge what the broker sends, until the broker closes the socket."""
    judge: ThreadJudge | None = None
    while (request := _receive(channel)) is not None:
        what, data = request
        try:
            if what == _JOB:
                judge = ThreadJudge(_decoder.decode(data), _go_on)
                _send(channel, _DONE)
            elif judge is None:
                raise Unavailable("there is no job yet")
            elif what == _MAP:
                _send(channel, _DONE, _MAPPED.pack(*judge.map(memoryview(data))))
            else:
                (judge.covered,) = _CLEAN_HEAD.unpack_from(data)
                found = judge.clean(memoryview(data)[_CLEAN_HEAD.size :])
                totals = (judge.records_dropped, judge.next_horizon_ms)
                head = _CLEANED.pack(found.next_offset, found.changed, *totals)
                _send(channel, _DONE, head, found.data)
        except CorruptBatch as error:
            _send(channel, _CORRUPT, str(error).encode())
        except OnelogError as error:
            _send(channel, _FAILED, str(error).encode())


def _go_on() -> None:
    """No pacing: the helper's interpreter does nothing else."""


# -- the wire


def _send(channel: socket.socket, what: int, *parts: bytes | bytearray | memoryview) -> None:
    channel.sendall(_FRAME.pack(what, sum(map(len, parts))))
    for part in parts:
        channel.sendall(part)


def _receive(channel: socket.socket) -> tuple[int, bytearray] | None:
    """One frame; None: the other side has closed the socket."""
    head = _receive_bytes(channel, _FRAME.size)
    if head is None:
        return None
    what, size = _FRAME.unpack(head)
    data = _receive_bytes(channel, size)
    return None if data is None else (what, data)


def _receive_bytes(channel: socket.socket, size: int) -> bytearray | None:
    data = bytearray(size)
    with memoryview(data) as view:
        at = 0
        while at < size:
            got = channel.recv_into(view[at:])
            if not got:
                return None
            at += got
    return data


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    with contextlib.suppress(ConnectionError), socket.socket(fileno=int(sys.argv[1])) as ours:
        serve(ours)
