"""The lake process as a broker sees it: jobs go there, and their results come back.

Rules: the process is spawned when the first job comes, never forked, and ends with the broker: it
reads a socket that closes then. If it dies, the jobs that it had end with Unavailable, and the next
job starts another one, at the earliest after a pause that doubles from 0.2 to 30 s. Jobs are
bounded: a caller waits for its turn, and every wait has a deadline. Threads call this, never a
loop.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from onelog.base.errors import Closed, ColdUnavailable, Unavailable
from onelog.lake.jobs import (
    HEAD_BYTES,
    MESSAGE_BYTES_MAX,
    AnyJob,
    Ask,
    LakeAnswer,
    LakeSettings,
    PingJob,
    answer_decoder,
    error_of,
)

JOBS_MAX: Final = 16
"""Jobs that the process has at a time."""
PAUSES_S: Final = (0.2, 30.0)
PING_S: Final = 10.0
"""After a job that was late: a process that does not answer so long that it is there is ended."""
_PEM: Final = "-----BEGIN"
_HEAD: Final = struct.Struct("<I")
assert _HEAD.size == HEAD_BYTES


class LakeLost(Unavailable):
    """The lake process could not be started, died, or does not answer in time."""


class _Waiting:
    """A job that the process has."""

    __slots__ = ("answer", "over")

    def __init__(self) -> None:
        self.answer: LakeAnswer | None = None
        self.over = threading.Event()


class _Running:
    """One life of the process."""

    def __init__(self, process: subprocess.Popen[bytes], channel: socket.socket) -> None:
        self.process = process
        self.channel = channel
        self.sending = threading.Lock()
        self.waiting: dict[int, _Waiting] = {}
        self.lost = False
        self.is_watched = False
        """Whether somebody waits for a sign of life."""


class LakeProcess:
    """Starts the process, and hands jobs to it."""

    def __init__(self, settings: LakeSettings, *, jobs_max: int = JOBS_MAX) -> None:
        self._settings = settings
        self._turns = threading.BoundedSemaphore(jobs_max)
        self._lock = threading.Lock()
        self._running: _Running | None = None
        self._number = 0
        self._closed = False
        self._pause_s = PAUSES_S[0]
        self._start_at = 0.0
        self.starts = 0
        """How often the process was started."""

    @property
    def pid(self) -> int | None:
        """The id of the process, while it runs."""
        running = self._running
        return None if running is None or running.lost else running.process.pid

    def ask(self, job: AnyJob, deadline_s: float) -> LakeAnswer:
        """Have a job done. Raises the job's error, LakeLost, or Closed."""
        ends = time.monotonic() + deadline_s
        if not self._turns.acquire(timeout=deadline_s):
            raise LakeLost("the lake process has too much to do: try again later")
        try:
            return self._ask(job, ends)
        finally:
            self._turns.release()

    def _ask(self, job: AnyJob, ends: float) -> LakeAnswer:
        waiting = _Waiting()
        with self._lock:
            running = self._alive(ends)
            self._number += 1
            number = self._number
            running.waiting[number] = waiting
        try:
            data = msgspec.msgpack.encode(Ask(number, job))
            with running.sending:
                running.channel.sendall(_HEAD.pack(len(data)) + data)
        except OSError as error:
            self._lose(running)
            raise LakeLost(f"the lake process does not answer: {error}") from error
        if not waiting.over.wait(max(0.0, ends - time.monotonic())):
            with self._lock:
                running.waiting.pop(number, None)
            self._suspect(running)
            raise LakeLost("the lake process did not answer in time")
        answer = waiting.answer
        if answer is None:
            raise LakeLost("the lake process died while it had this job; it is started again")
        if answer.error:
            raise error_of(answer)
        return answer

    def _suspect(self, running: _Running) -> None:
        """A process that hangs as a whole is ended; one that is only slow goes on."""
        with self._lock:
            if running.is_watched or running.lost:
                return
            running.is_watched = True
        threading.Thread(
            target=self._watch, args=(running,), name="onelog-lake-watch", daemon=True
        ).start()

    def _watch(self, running: _Running) -> None:
        sign = _Waiting()
        with self._lock:
            self._number += 1
            number = self._number
            running.waiting[number] = sign
        data = msgspec.msgpack.encode(Ask(number, PingJob()))
        # A process that takes nothing any more may hold up whoever sends: so nobody waits for it.
        threading.Thread(
            target=self._send, args=(running, data), name="onelog-lake-ping", daemon=True
        ).start()
        if not sign.over.wait(PING_S):
            self._lose(running)
        running.is_watched = False

    @staticmethod
    def _send(running: _Running, data: bytes) -> None:
        with contextlib.suppress(OSError), running.sending:
            running.channel.sendall(_HEAD.pack(len(data)) + data)

    def _alive(self, ends: float) -> _Running:
        """The running process; the lock is held."""
        if self._closed:
            raise Closed("the lake process was asked to end")
        running = self._running
        if running is not None and not running.lost:
            self._pause_s = PAUSES_S[0]
            return running
        wait_s = self._start_at - time.monotonic()
        if wait_s > 0:
            raise LakeLost(
                f"the lake process died and is started again in {wait_s:.1f} s at the earliest"
            )
        del ends
        self._start_at = time.monotonic() + self._pause_s
        self._pause_s = min(self._pause_s * 2, PAUSES_S[1])
        self._running = self._start()
        return self._running

    def _start(self) -> _Running:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = _spawn(theirs.fileno(), _trusting(self._settings))
        except OSError as error:
            ours.close()
            raise LakeLost(f"no lake process can be started: {error}") from error
        running = _Running(process, ours)
        data = msgspec.msgpack.encode(self._settings)
        try:
            ours.sendall(_HEAD.pack(len(data)) + data)
        except OSError as error:
            ours.close()
            raise LakeLost(f"the lake process does not begin: {error}") from error
        self.starts += 1
        threading.Thread(
            target=self._listen, args=(running,), name="onelog-lake", daemon=True
        ).start()
        return running

    def _listen(self, running: _Running) -> None:
        """Take answers until the process is gone."""
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            while (data := receive(running.channel)) is not None:
                answer = answer_decoder.decode(data)
                with self._lock:
                    waiting = running.waiting.pop(answer.number, None)
                if waiting is not None:
                    waiting.answer = answer
                    waiting.over.set()
        self._lose(running)

    def _lose(self, running: _Running) -> None:
        with self._lock:
            running.lost = True
            left = list(running.waiting.values())
            running.waiting.clear()
        for waiting in left:
            waiting.over.set()
        running.channel.close()
        running.process.kill()
        running.process.wait()

    def close(self) -> None:
        """End the process, also in the middle of its work."""
        with self._lock:
            self._closed = True
            running, self._running = self._running, None
        if running is not None:
            with contextlib.suppress(OSError):
                running.channel.shutdown(socket.SHUT_RDWR)
            self._lose(running)


def _spawn(file_descriptor: int, trusting: Mapping[str, str]) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return subprocess.Popen(  # noqa: S603 - our own interpreter and module
        # -P: Python never imports from the current folder.
        [sys.executable, "-P", "-m", "onelog.lake.process", str(file_descriptor)],
        stdin=subprocess.DEVNULL,
        pass_fds=[file_descriptor],
        env={**os.environ, "PYTHONPATH": path, **trusting},
        start_new_session=True,  # Ctrl-C is for the broker, which then ends the process
    )


def _trusting(settings: LakeSettings) -> Mapping[str, str]:
    """The environment that lets the store's own authority count beside those of the system. Each
    library of tables has another option for it, or none; all of them read this file."""
    roots = settings.options.get("root_certificate", "")
    if not roots:
        return {}
    text = (
        roots
        if _PEM in roots
        else Path(roots).expanduser().read_text(encoding="utf-8", errors="replace")
    )
    known = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    with contextlib.suppress(OSError, TypeError):  # none, or it cannot be read
        text = f"{Path(str(known)).read_text(encoding='utf-8')}\n{text}"
    file = Path(f"{settings.folder}.pem")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return {"SSL_CERT_FILE": str(file.absolute())}


def receive(channel: socket.socket) -> bytearray | None:
    """One message; None: the other side is gone."""
    head = _receive_bytes(channel, HEAD_BYTES)
    if head is None:
        return None
    (size,) = _HEAD.unpack(head)
    if size > MESSAGE_BYTES_MAX:
        raise ColdUnavailable(f"a message of the lake process claims {size} bytes")
    return _receive_bytes(channel, size)


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
