"""Calls over a link: a question with a deadline, its answer, and taking it back.

Rules:
- A call has a number, the channel of its frames. Numbers of calls under way differ.
- The asker's deadline goes with the call: the answering side stops working on it then. A call that
  the asker gives up is cancelled there.
- A call whose answer did not come is `Timeout`: whether it was done is not known (C7). One that was
  never sent is `Unavailable`. An error of the answering side is raised here as what it was there.
- Both sides bound how many calls are under way; beyond, a call is refused and nothing was done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from onelog.base import errors
from onelog.base.errors import OnelogError, Timeout, Unavailable
from onelog.base.limits import LINK_CALL_BYTES_MAX, LINK_CALLS_MAX
from onelog.cluster.link.layout import LinkKind, LinkViolation, frame
from onelog.net.tasks import OwnedTasks
from onelog.observe import Troubles

CALL_TROUBLE: Final = "inner-call"
"""Incidents: a handler of a call raised an error that is a fault of ours."""
TIMEOUT_S_MAX: Final = 600.0
FAILED: Final = 1
"""Flag of an answer that is an error."""
TEXT_MAX: Final = 2_000
HELD_BYTES_MAX: Final = 16 * LINK_CALL_BYTES_MAX
"""Bytes of the calls that a node answers at a time for one other node."""

Handler = Callable[[int, msgspec.Raw], Awaitable[Any]]
"""Takes the node that asks and the argument; returns what msgpack can hold."""


class InnerCall(msgspec.Struct, frozen=True, array_like=True):
    """The body of CALL."""

    method: Annotated[str, Meta(min_length=1, max_length=100)]
    timeout_ms: Annotated[int, Meta(ge=1, le=int(TIMEOUT_S_MAX * 1000))]
    argument: msgspec.Raw


class InnerFailure(msgspec.Struct, frozen=True, array_like=True):
    """The body of ANSWER, if it is an error."""

    name: Annotated[str, Meta(max_length=100)]
    text: Annotated[str, Meta(max_length=TEXT_MAX)]


_calls = msgspec.msgpack.Decoder(InnerCall)
_failures = msgspec.msgpack.Decoder(InnerFailure)
_encode: Final = msgspec.msgpack.Encoder().encode

ERRORS: Final[dict[str, type[OnelogError]]] = {
    name: found
    for name, found in vars(errors).items()
    if isinstance(found, type) and issubclass(found, OnelogError)
}
"""Every error of the tree, by its name."""


def encode_call(method: str, argument: Any, timeout_s: float, number: int) -> bytes:
    """A CALL."""
    raw = msgspec.Raw(_encode(argument))
    body = _encode(InnerCall(method, max(1, int(timeout_s * 1000)), raw))
    return frame(LinkKind.CALL, body, number)


def decode_call(body: bytes) -> InnerCall:
    """The body of a CALL. Raises LinkViolation."""
    try:
        return _calls.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise LinkViolation(f"CALL cannot be read: {error}") from None


def encode_failure(error: OnelogError, number: int) -> bytes:
    """An ANSWER that says why there is none."""
    failure = InnerFailure(_name_of(error), str(error)[:TEXT_MAX])
    return frame(LinkKind.ANSWER, _encode(failure), number, FAILED)


def decode_failure(body: bytes) -> OnelogError:
    """The error that an ANSWER holds. Raises LinkViolation."""
    try:
        found = _failures.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise LinkViolation(f"ANSWER cannot be read: {error}") from None
    # A later release may know more errors; what the caller can tell apart stays as it is.
    return ERRORS.get(found.name, OnelogError)(found.text)


def _name_of(error: OnelogError) -> str:
    """The nearest class of the one error tree."""
    return next(kind.__name__ for kind in type(error).__mro__ if ERRORS.get(kind.__name__) is kind)


class Asking:
    """The calls that this side waits for."""

    __slots__ = ("_last", "_loop", "_send", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop, send: Callable[[bytes], None]) -> None:
        self._loop = loop
        self._send = send
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._waiting)

    async def ask(self, node: int, method: str, argument: Any, timeout_s: float) -> bytes:
        """The answer, in msgpack. Raises what the other side raised, Timeout or Unavailable."""
        if len(self._waiting) >= LINK_CALLS_MAX:
            raise Unavailable(f"node {node} has {LINK_CALLS_MAX} calls to answer: try again later")
        number = self._number()
        said = encode_call(method, argument, min(timeout_s, TIMEOUT_S_MAX), number)
        if len(said) > LINK_CALL_BYTES_MAX:
            raise errors.LimitExceeded(
                f"a call of {method} has {len(said)} bytes, which is too much"
            )
        answer = self._waiting[number] = self._loop.create_future()
        self._send(said)
        try:
            async with asyncio.timeout(timeout_s):
                body: bytes = await answer
                return body
        except TimeoutError:
            self._send(frame(LinkKind.CANCEL, b"", number))
            raise Timeout(
                f"node {node} did not answer {method} within {timeout_s:g} s; whether it was done"
                " is not known"
            ) from None
        except asyncio.CancelledError:
            self._send(frame(LinkKind.CANCEL, b"", number))
            raise
        finally:
            del self._waiting[number]

    def _number(self) -> int:
        while True:
            self._last = self._last % 0xFFFF_FFFF + 1
            if self._last not in self._waiting:
                return self._last

    def answered(self, number: int, flags: int, body: bytes) -> None:
        """An ANSWER came; one for a call that was given up says nothing. Raises LinkViolation."""
        if flags & ~FAILED:
            raise LinkViolation(f"ANSWER with flags {flags}")
        error = decode_failure(body) if flags else None
        waits = self._waiting.get(number)
        if waits is None or waits.done():
            return
        if error is not None:
            waits.set_exception(error)
        else:
            waits.set_result(body)

    def lost(self, node: int) -> None:
        """The link is gone: no answer comes any more."""
        for waits in self._waiting.values():
            if not waits.done():
                waits.set_exception(
                    Timeout(f"the link to node {node} broke; whether the call was done is open")
                )


class Answering:
    """The calls that this side works on."""

    __slots__ = ("_handlers", "_held_bytes", "_running", "_send", "_tasks", "_troubles")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send: Callable[[bytes], None],
        handlers: Mapping[str, Handler],
        troubles: Troubles,
    ) -> None:
        self._send = send
        self._handlers = handlers
        self._troubles = troubles
        self._tasks = OwnedTasks(loop)
        self._running: dict[int, asyncio.Task[None]] = {}
        self._held_bytes = 0
        """Bytes of the arguments of all calls that run."""

    def __len__(self) -> int:
        return len(self._running)

    def called(self, node: int, number: int, body: bytes) -> None:
        """A CALL came. Raises LinkViolation."""
        call = decode_call(body)
        if number in self._running:
            raise LinkViolation(f"call {number} began while another one of this number ran")
        handler = self._handlers.get(call.method)
        if handler is None:
            self._fail(number, errors.InvalidRequest(f"there is no inner call {call.method!r}"))
            return
        size = len(body)
        is_full = len(self._running) >= LINK_CALLS_MAX
        if is_full or self._held_bytes + size > HELD_BYTES_MAX:
            self._fail(number, Unavailable("this node has too many calls to answer: try later"))
            return
        self._held_bytes += size
        task = self._tasks.run(self._answer(node, number, call, handler), self._note)
        self._running[number] = task
        task.add_done_callback(partial(self._done, number, size))

    def _done(self, number: int, size: int, _task: asyncio.Task[None]) -> None:
        del self._running[number]
        self._held_bytes -= size

    def cancelled(self, number: int) -> None:
        """A CANCEL came; the call may be answered by now."""
        task = self._running.get(number)
        if task is not None:
            task.cancel()

    def lost(self) -> None:
        """The asker is gone: nobody wants the answers."""
        self._tasks.cancel()

    async def _answer(self, node: int, number: int, call: InnerCall, handler: Handler) -> None:
        try:
            async with asyncio.timeout(call.timeout_ms / 1000):
                body = _encode(await handler(node, call.argument))
        except TimeoutError:
            return  # so does the asker's, and nobody waits
        except OnelogError as error:
            self._fail(number, error)
            return
        except Exception as error:  # noqa: BLE001 - a fault of ours; the asker gets an answer
            self._troubles.note(CALL_TROUBLE, call.method, error)
            self._fail(number, OnelogError(f"{call.method} failed: see the log of that node"))
            return
        if len(body) > LINK_CALL_BYTES_MAX:
            self._fail(
                number, errors.LimitExceeded(f"the answer to {call.method} has {len(body)} bytes")
            )
            return
        self._send(frame(LinkKind.ANSWER, body, number))

    def _fail(self, number: int, error: OnelogError) -> None:
        self._send(encode_failure(error, number))

    def _note(self, error: BaseException) -> None:
        self._troubles.note(CALL_TROUBLE, "answer", error)
