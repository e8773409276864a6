"""The form of the commands that a running server takes, and the table of their handlers.

Rules: a message is a JSON object whose `type` is `subject.verb`. Each package that takes commands
registers its subject; this module does not know them. An error travels as its class in
`base.errors` and its message. Nothing here is heavy to import, because the command line does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

import msgspec

from onelog.base import errors
from onelog.base.errors import InvalidRequest, OnelogError

Runner = Callable[[bytes], Awaitable[bytes]]
"""Runs the command of a message; the message of its answer, also when it failed."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a command that failed; every subject's answers have these fields, too."""

    error: str
    """The class of the error."""
    message: str


class CommandAnswer(Protocol):
    """What every answer says of errors."""

    @property
    def error(self) -> str:
        """The class of the error; empty when all went well."""
        ...

    @property
    def message(self) -> str:
        """What the error says."""
        ...


A = TypeVar("A", bound=CommandAnswer)


class _Kind(msgspec.Struct, frozen=True):
    type: str = ""


class Commands:
    """The handler of each subject."""

    def __init__(self, runners: dict[str, Runner]) -> None:
        self._runners = runners

    async def run(self, message: bytes) -> bytes:
        """Run the command of a message; the message of its answer, also when it failed."""
        try:
            subject = msgspec.json.decode(message, type=_Kind).type.partition(".")[0]
        except msgspec.MsgspecError as error:
            return not_understood(error)
        runner = self._runners.get(subject)
        if runner is None:
            return failed(InvalidRequest(f"no command is about {subject!r} here"))
        return await runner(message)


def failed(error: OnelogError) -> bytes:
    """The message of an answer with an error."""
    return msgspec.json.encode(Failure(error=type(error).__name__, message=str(error)))


def not_understood(error: msgspec.MsgspecError) -> bytes:
    """The answer to a message that is not a command."""
    return failed(InvalidRequest(f"the command is not understood: {error}"))


async def run_decoded(message: bytes, kind: Any, run: Callable[[Any], Awaitable[Any]]) -> bytes:
    """Run the command of a message; the message of its answer, also when it failed."""
    try:
        command = msgspec.json.decode(message, type=kind)
    except msgspec.MsgspecError as error:
        return not_understood(error)
    try:
        return msgspec.json.encode(await run(command))
    except OnelogError as error:
        return failed(error)


def decoded(message: bytes, kind: type[A]) -> A:
    """The answer of a message. Raises the error that it reports."""
    try:
        answer = msgspec.json.decode(message, type=kind)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"the server's answer is not understood: {error}") from None
    raise_error(answer.error, answer.message)
    return answer


def raise_error(name: str, message: str) -> None:
    """Raise the error in an answer, by its class; an empty name means no error."""
    if name:
        raise _error_class(name)(message)


def _error_class(name: str) -> type[OnelogError]:
    kind = getattr(errors, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, OnelogError) else OnelogError
