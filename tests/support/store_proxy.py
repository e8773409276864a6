"""A proxy between a client and an S3 server that loses, delays, refuses, cuts and changes answers.

Rules: without a fault every request and answer passes as it is. A fault is for the next so many
requests of a method (and with a text in their path); the order in which faults were added counts.
"""

from __future__ import annotations

import contextlib
import datetime
import email.utils
import http.client
import re
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal
from urllib.parse import urlsplit

Kind = Literal[
    "lose",
    "drop",
    "delay",
    "throttle",
    "conflict",
    "refuse",
    "cut",
    "flip",
    "skew",
    "age",
    "before",
    "after",
]
REFUSALS = {
    "throttle": (503, "SlowDown"),
    "conflict": (409, "ConditionalRequestConflict"),
    "refuse": (403, "InvalidAccessKeyId"),
    "skew": (403, "RequestTimeTooSkewed"),
}
FOREVER = 1_000_000
_MODIFIED = re.compile(rb"(?<=<LastModified>)[^<]+")
HOP = ("connection", "transfer-encoding", "keep-alive", "content-length", "date")


def _two_days_before(found: re.Match[bytes]) -> bytes:
    told = datetime.datetime.fromisoformat(found[0].decode())
    before = told - datetime.timedelta(days=2)
    return before.isoformat(timespec="milliseconds").replace("+00:00", "Z").encode()


@dataclass
class Fault:
    """What happens to some requests.

    lose: done, but no answer. drop: neither. delay: so many seconds later. throttle, conflict,
    refuse, skew: refused with 503, 409, 403, 403 and not done. cut: half of the answer's body.
    flip: a bit of the answer's body is another. age: what a listing names is two days older.
    before: `call` is called before the request is done. after: it is done and called, no answer.
    """

    kind: Kind
    times: int
    method: str
    path: str
    seconds: float
    key: str
    """Of requests that were signed with this key."""
    call: Callable[[], object]


class StoreProxy:
    """A proxy on a port of its own; `fault` adds one, `heal` forgets all."""

    def __init__(self, endpoint: str) -> None:
        address = urlsplit(endpoint)
        self.upstream = (address.hostname or "", address.port or 80)
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str]] = []
        """Method and path of what came."""
        self.date_moved_s = 0.0
        self._lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.block_on_close = False
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def fault(
        self,
        kind: Kind,
        times: int = 1,
        *,
        method: str = "",
        path: str = "",
        seconds: float = 0.0,
        key: str = "",
        call: Callable[[], object] = lambda: None,
    ) -> None:
        """Let something happen to the next `times` requests that match."""
        self.faults.append(Fault(kind, times, method, path, seconds, key, call))

    def heal(self) -> None:
        """No fault from now on."""
        self.faults.clear()
        self.date_moved_s = 0.0

    def take(self, method: str, path: str, signature: str) -> Fault | None:
        """The fault of a request."""
        with self._lock:
            self.requests.append((method, path))
            for fault in self.faults:
                is_meant = fault.method in ("", method) and fault.path in path
                if fault.times > 0 and is_meant and f"{fault.key}/" in f"{signature}/":
                    fault.times -= 1
                    return fault
        return None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: StoreProxy

    def pass_on(self) -> None:
        body = self.body()
        fault = self.owner.take(self.command, self.path, self.headers.get("Authorization", ""))
        kind = fault.kind if fault else None
        if fault is not None and kind == "delay":
            time.sleep(fault.seconds)
        if fault is not None and kind == "before":
            fault.call()
        if kind == "drop":
            self.close_connection = True
            return
        if kind in REFUSALS:
            status, code = REFUSALS[kind]
            told = f"<Error><Code>{code}</Code><Message>by the proxy</Message></Error>"
            self.answer(status, [("Content-Type", "application/xml")], told.encode())
            return
        try:
            status, headers, found, size = self.ask(body)
        except (OSError, http.client.HTTPException):
            self.close_connection = True
            return
        if fault is not None and kind == "after":
            fault.call()
        if kind in ("lose", "after"):
            self.close_connection = True
            return
        if kind == "flip" and found:
            middle = len(found) // 2
            found = found[:middle] + bytes([found[middle] ^ 1]) + found[middle + 1 :]
        if kind == "age":
            found = _MODIFIED.sub(_two_days_before, found)
            size = len(found)
        cut = len(found) // 2 if kind == "cut" else None
        self.answer(status, headers, found, size, cut)

    def body(self) -> bytes:
        """The body of a request as it came, in pieces with their lengths if the client sent it so:
        the libraries of tables do."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        came = bytearray()
        while True:
            line = self.rfile.readline()
            came += line
            size_bytes = int(line.partition(b";")[0], 16)
            if not size_bytes:
                break
            came += self.rfile.read(size_bytes + len(b"\r\n"))
        while came[-4:] != b"\r\n\r\n":  # trailers
            came += self.rfile.readline()
        return bytes(came)

    def ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes, int]:
        """Ask the server the same, and read its whole answer."""
        with contextlib.closing(http.client.HTTPConnection(*self.owner.upstream)) as upstream:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() != "connection":
                    upstream.putheader(name, value)
            upstream.endheaders(body)
            told = upstream.getresponse()
            found = told.read()
            size = int(told.getheader("Content-Length") or len(found))
            return told.status, told.getheaders(), found, size

    def answer(
        self,
        status: int,
        headers: list[tuple[str, str]],
        body: bytes,
        size_bytes: int | None = None,
        cut: int | None = None,
    ) -> None:
        """Answer; with `cut` only so many bytes of what the headers promise."""
        now = datetime.datetime.now(datetime.UTC)
        moved = now + datetime.timedelta(seconds=self.owner.date_moved_s)
        self.send_response_only(status)
        self.send_header("Date", email.utils.format_datetime(moved, usegmt=True))
        for name, value in headers:
            if name.lower() not in HOP:
                self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body) if size_bytes is None else size_bytes))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.close_connection = True

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        pass


@contextlib.contextmanager
def store_proxy(endpoint: str) -> Iterator[StoreProxy]:
    """A proxy for as long as the block runs."""
    proxy = StoreProxy(endpoint)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
