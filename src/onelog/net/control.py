"""The control socket: how commands on this machine reach a running server.

Rules: `control.sock` in the data directory, mode 0600, and only the server's own user or root is
heard. One connection carries one message each way, a line of JSON; its meaning is the handler's
affair. The holder of the data directory's lock owns the file, so an old one is always stale.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

from onelog.base.errors import Timeout, Unavailable
from onelog.observe import get_logger

_log = get_logger("control")

FILE_NAME: Final = "control.sock"
MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of an answer; a list of many thousand users fits."""

REQUEST_BYTES_MAX: Final = 65_536
CONNECTIONS_MAX: Final = 16
TIMEOUT_S: Final = 30.0
"""How long one exchange may take."""

Handler = Callable[[bytes, int], Awaitable[bytes]]
"""Takes a message and the system user who sent it."""


class ControlServer:
    """Hears commands until it is closed."""

    def __init__(self, data_dir: Path, handler: Handler) -> None:
        self._data_dir = data_dir
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._held = contextlib.ExitStack()  # the directory, by which the socket is named
        self._talks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to hear. Where the file system has no sockets, the server runs without it."""
        try:
            sock = _bind(self._data_dir, self._held.enter_context(_short(self._data_dir)))
        except OSError as error:
            _log.warning(
                "the control socket could not be made: `onelog user` works only while the"
                " server is stopped",
                file=str(self._data_dir / FILE_NAME),
                error=error.strerror,
            )
            return
        self._server = await asyncio.start_unix_server(
            self._talk, sock=sock, limit=REQUEST_BYTES_MAX
        )

    async def close(self) -> None:
        """Hear no more; a command that runs is ended. Idempotent."""
        if self._server is None:
            self._held.close()
            return
        self._server.close()
        self._server = None
        with contextlib.suppress(FileNotFoundError):
            (self._data_dir / FILE_NAME).unlink()
        self._held.close()
        for task in self._talks:
            task.cancel()
        if self._talks:
            await asyncio.wait(self._talks)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._talks.add(task)
        try:
            user = _user_of(writer)
            if len(self._talks) <= CONNECTIONS_MAX and user in (0, os.geteuid()):
                async with asyncio.timeout(TIMEOUT_S):
                    request = await reader.readuntil(b"\n")
                    writer.write(await self._handler(request, user) + b"\n")
                    await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the caller went away, or sent no command
        finally:
            self._talks.discard(task)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


def call(data_dir: Path, request: bytes) -> bytes:
    """Send a command to the server on a data directory; its answer. Raises Unavailable."""
    assert b"\n" not in request
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock, _short(data_dir) as name:
            sock.settimeout(TIMEOUT_S)
            sock.connect(name)
            sock.sendall(request + b"\n")
            answer = _read_line(sock)
    except TimeoutError:
        raise Timeout(
            "the server did not answer in time; the command may or may not have run"
        ) from None
    except OSError as error:
        raise Unavailable(
            f"a server runs on {str(data_dir)!r} but takes no commands at the moment "
            f"({error.strerror}); try again when it is ready"
        ) from None
    if not answer:
        raise Unavailable(
            "the server ended the connection without an answer: the server is busy"
            " or is stopping; try again"
        )
    return answer


def _read_line(sock: socket.socket) -> bytes:
    answer = b""
    while not answer.endswith(b"\n") and len(answer) < MESSAGE_BYTES_MAX:
        data = sock.recv(65_536)
        if not data:
            return b""
        answer += data
    return answer[:-1]


def _bind(data_dir: Path, name: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Before the bind, so that the file never has another mode.
        os.fchmod(sock.fileno(), 0o600)
        with contextlib.suppress(FileNotFoundError):
            (data_dir / FILE_NAME).unlink()
        sock.bind(name)
        sock.listen(CONNECTIONS_MAX)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


@contextlib.contextmanager
def _short(data_dir: Path) -> Iterator[str]:
    """A name of the socket that fits into the 107 bytes which the system allows."""
    handle = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{handle}/{FILE_NAME}"
    finally:
        os.close(handle)


def _user_of(writer: asyncio.StreamWriter) -> int:
    sock = writer.get_extra_info("socket")
    size = struct.calcsize("3i")
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, user, _ = struct.unpack("3i", credentials)
    return int(user)
