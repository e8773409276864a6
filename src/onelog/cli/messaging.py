"""`onelog pub|sub|tail|replay`: messages by any protocol, in one way of writing them.

Rules: a topic is written as in `docs/reference/names.md`, `a/b/c`, whatever protocol carries it.
Messages go to standard output, one per line, everything else to standard error. `sub` is for pipes,
`tail` for people, `replay` for history: it ends at the end that the log had when the command began,
unless `--follow` is set. With `--count`, the command fails if fewer messages came in time.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from cyclopts import App, Parameter

from onelog.base.errors import ConfigError, InvalidRequest, OnelogError, Timeout
from onelog.base.topics import check_filter, check_topic
from onelog.cli import render
from onelog.cli.options import Assignments, ConfigFile
from onelog.cli.printable import escape_json, visible
from onelog.cli.talk import (
    Message,
    Patience,
    Start,
    Talker,
    Via,
    Wanted,
    open_talker,
    parse_start,
)
from onelog.cli.talk.address import address_of
from onelog.cli.talk.link import ANSWER_S
from onelog.cli.talk.messages import check_number, from_json, to_json
from onelog.config.units import parse_quantity

IDLE_S: Final = 1.0
"""A replay by MQTT has no end mark: it ends when nothing came for so long."""
PAYLOAD_CHARS: Final = 200
"""So much of a payload `tail` shows."""

T = TypeVar("T")

Flag = Parameter(negative=(), show_default=False)
Count = Annotated[int | None, Parameter(name=["--count", "-n"], help="End after so many messages.")]
TimeoutS = Annotated[float | None, Parameter(help="End after so many seconds.")]
Json = Annotated[bool, Flag, Parameter(help="One JSON object per line, with every field.")]
Queue = Annotated[str, Parameter(help="AMQP: take messages from this queue, and acknowledge them.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Broker:
    """Which broker, by which protocol."""

    via: Annotated[Via, Parameter(help="The protocol that carries the messages.")] = "mqtt"
    host: Annotated[str, Parameter(help="Host of the broker; default: from the configuration.")] = (
        ""
    )
    port: Annotated[int, Parameter(help="Port of the broker; default: from the configuration.")] = 0
    user: Annotated[str, Parameter(name=["--user", "-u"], help="Name of the user.")] = ""
    password_file: Annotated[
        Path | None, Parameter(help="File with the password in its first line.")
    ] = None
    tls: Annotated[bool, Flag, Parameter(help="Speak TLS.")] = False
    ca_file: Annotated[
        str, Parameter(help="PEM file: authorities for the broker's certificate.")
    ] = ""
    exchange: Annotated[
        str | None,
        Parameter(help="AMQP: the exchange; then TOPIC is the routing key ('' is the default)."),
    ] = None
    partition: Annotated[int | None, Parameter(help="Kafka: write to this partition.")] = None
    config: ConfigFile = None
    assignments: Assignments = ()

    @contextmanager
    def connected(self, answer_s: float = ANSWER_S) -> Iterator[Talker]:
        """A connection for the length of a block; the argument bounds the wait for an answer."""
        address = address_of(self, self.via, answer_s)
        talker = open_talker(self.via, address, exchange=self.exchange, partition=self.partition)
        try:
            yield talker
        except BaseException:
            with suppress(OnelogError):  # what went wrong first is what counts
                talker.close()
            raise
        talker.close()


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Said:
    """The parts of a message besides its payload."""

    key: Annotated[str | None, Parameter(name=["--key", "-k"], help="Kafka: the key.")] = None
    header: Annotated[
        tuple[str, ...],
        Parameter(name=["--header", "-H"], negative=(), help="NAME=VALUE; repeatable, in order."),
    ] = ()
    qos: Annotated[
        int, Parameter(name=["--qos", "-q"], help="0, 1 or 2; above 0 is persistent in AMQP.")
    ] = 1
    retain: Annotated[
        bool, Flag, Parameter(help="MQTT: keep the message for later subscribers.")
    ] = False
    content_type: str | None = None
    correlation: Annotated[str | None, Parameter(help="Id that a reply repeats.")] = None
    reply_to: Annotated[str | None, Parameter(help="The topic for replies.")] = None
    expiry: Annotated[
        str | None, Parameter(help="The message expires after this time, such as 10s.")
    ] = None
    message_id: str | None = None
    type: str | None = None
    priority: int | None = None

    def message(self, topic: str, payload: bytes | None) -> Message:
        """A message that says this."""
        fields: dict[str, Any] = {"qos": self.qos} if self.qos else {}
        if self.retain:
            fields["retain"] = True
        if self.correlation is not None:
            fields["correlation"] = self.correlation.encode()
        if self.expiry is not None:
            ends = time.time_ns() // 1_000_000 + _milliseconds(self.expiry)
            fields["expires_ms"] = ends
        for name in ("content_type", "reply_to", "message_id", "type", "priority"):
            value = getattr(self, name)
            if value is not None:
                fields[name] = value
        for name in fields.keys() & {"qos", "priority", "expires_ms"}:
            try:
                check_number(name, fields[name])
            except ValueError as error:
                raise ConfigError(f"--{name}: {error}") from error
        headers = [_pair(text) for text in self.header]
        key = None if self.key is None else self.key.encode()
        return Message(topic=topic, payload=payload, key=key, headers=headers, fields=fields)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Given:
    """Where payloads come from, when none is on the command line."""

    lines: Annotated[bool, Flag, Parameter(help="Each line of the input is a message.")] = False
    file: Annotated[Path | None, Parameter(help="Read this file, not standard input.")] = None
    null: Annotated[bool, Flag, Parameter(help="No payload: Kafka's tombstone.")] = False
    json: Annotated[
        bool, Flag, Parameter(help="Each line of the input is a message as `sub --json` prints it.")
    ] = False


BROKER, NOTHING_SAID, STANDARD_INPUT = Broker(), Said(), Given()


def add_messaging(app: App) -> None:
    """The commands of messages, at the top of the tree."""
    app.command(pub)
    app.command(sub)
    app.command(tail)
    app.command(replay)


def pub(
    topic: str = "",
    payload: str | None = None,
    /,
    *,
    given: Given = STANDARD_INPUT,
    timeout: Annotated[
        float, Parameter(help="Fail when the broker answered nothing for so many seconds.")
    ] = ANSWER_S,
    said: Said = NOTHING_SAID,
    broker: Broker = BROKER,
) -> None:
    """Publish the given payload, or the contents of standard input or a file.

    Ends when the broker has acknowledged every message.
    """
    if (payload is not None or given.null) and (
        given.lines or given.json or given.file is not None
    ):
        raise ConfigError("a payload and --lines, --json, --null or --file exclude each other")
    if said.key is not None and broker.via != "kafka":
        raise ConfigError("--key needs --via kafka: in MQTT and AMQP the topic is the key")
    if timeout <= 0:
        raise ConfigError(f"--timeout {timeout}: more than 0")
    if not topic and not given.json:
        raise ConfigError("which topic? onelog pub TOPIC PAYLOAD")
    messages = _messages(topic, payload, given, said)
    first = next(messages, None)  # a wrong message is an error before the broker is called
    if first is None:
        return
    if broker.exchange is None and not given.json:
        _checked(check_topic, topic)
    with broker.connected(timeout) as talker:
        for message in chain((first,), messages):
            talker.publish(message)
        talker.flush()


def sub(
    filter: str = "",  # noqa: A002 - the word of the users
    /,
    *,
    start: Annotated[
        str, Parameter(name="--from", help="latest, earliest, offset:N, a time or milliseconds.")
    ] = "latest",
    count: Count = None,
    timeout: TimeoutS = None,
    json: Json = False,
    qos: Annotated[int, Parameter(name=["--qos", "-q"], help="MQTT: the highest QoS.")] = 1,
    queue: Queue = "",
    broker: Broker = BROKER,
) -> None:
    """Print messages as they come: the payload, one per line, or JSON.

    Parameters
    ----------
    filter
        A topic, or a filter with + and #.
    """
    wanted = _wanted(filter, broker, queue, start=_checked(parse_start, start), qos=qos)
    _read(broker, wanted, Patience(timeout), count, _as_json if json else _payload)


def tail(
    filter: str = "#",  # noqa: A002
    /,
    *,
    count: Count = None,
    timeout: TimeoutS = None,
    json: Json = False,
    broker: Broker = BROKER,
) -> None:
    """Show what is published from now on, with topic, time and headers."""
    wanted = _wanted(filter, broker, "", retained=False)
    _read(broker, wanted, Patience(timeout), count, _as_json if json else _shown)


def replay(
    filter: str,  # noqa: A002
    /,
    *,
    start: Annotated[
        str, Parameter(name="--from", help="earliest, offset:N, a time or milliseconds.")
    ] = "earliest",
    follow: Annotated[bool, Flag, Parameter(help="Go on with new messages.")] = False,
    count: Count = None,
    timeout: TimeoutS = None,
    json: Json = False,
    broker: Broker = BROKER,
) -> None:
    """Print what was published, from a place in the log up to its end."""
    begin = _checked(parse_start, start)
    wanted = _wanted(filter, broker, "", start=begin, to_end=not follow)
    idle_s = IDLE_S if broker.via == "mqtt" and not follow else None
    _read(broker, wanted, Patience(timeout, idle_s), count, _as_json if json else _payload)


# -- reading


def _wanted(text: str, broker: Broker, queue: str, **options: Any) -> Wanted:
    if queue:
        if broker.via != "amqp":
            raise ConfigError("--queue needs --via amqp")
        if options.get("start", Start("latest")).kind != "latest":
            raise ConfigError(
                "--queue and --from exclude each other: the queue knows where it stands"
            )
    elif not text:
        raise ConfigError("which topic or filter? onelog sub FILTER")
    elif broker.exchange is None:
        _checked(check_filter, text)
    return Wanted(filter=text, queue=queue, **options)


def _checked(check: Callable[[str], T], text: str) -> T:
    """The checked value of an argument; a refused one is an error of the command line."""
    try:
        return check(text)
    except InvalidRequest as error:
        raise ConfigError(str(error)) from error


def _read(broker: Broker, wanted: Wanted, patience: Patience, count: int | None, show: Any) -> None:
    if count is not None and count < 1:
        raise ConfigError(f"--count {count}: at least 1")
    got, out = 0, sys.stdout.buffer
    if show is _payload and sys.stdout.isatty():
        show = _printed_payload
    with broker.connected() as talker:
        for message in talker.receive(wanted, patience):
            out.write(show(message) + b"\n")
            out.flush()
            talker.settle()
            got += 1
            if got == count:
                break
    if count is not None and got < count and not wanted.to_end:
        raise Timeout(f"{got} of {count} messages came in time")


def _payload(message: Message) -> bytes:
    return message.payload or b""


def _printed_payload(message: Message) -> bytes:
    """For a terminal, which a payload does not steer; a pipe gets the bytes as they are."""
    return visible((message.payload or b"").decode(errors="replace")).encode()


def _as_json(message: Message) -> bytes:
    return escape_json(to_json(message).decode()).encode()


def _shown(message: Message) -> bytes:
    """A line for eyes: when, where, what, and what it says beside that."""
    at_ms = message.timestamp_ms or time.time_ns() // 1_000_000
    clock = datetime.fromtimestamp(at_ms / 1000).astimezone().strftime("%H:%M:%S.%f")[:-3]
    text = "(null)" if message.payload is None else message.payload.decode(errors="replace")
    if len(text) > PAYLOAD_CHARS:
        text = f"{text[:PAYLOAD_CHARS]}… ({len(message.payload or b'')} bytes)"
    line = f"{clock}  {message.topic}  {text}"
    said = [f"{name}={value!r}" for name, value in message.fields.items()]
    said += [
        f"{name}: {(value or b'').decode(errors='replace')}" for name, value in message.headers
    ]
    return visible(f"{line}  [{', '.join(said)}]" if said else line).encode()


# -- writing


def _messages(topic: str, payload: str | None, given: Given, said: Said) -> Iterator[Message]:
    if payload is not None or given.null:
        yield said.message(topic, None if given.null else (payload or "").encode())
        return
    with _input(given.file) as source:
        if not given.lines and not given.json:
            yield said.message(topic, source.read())
            return
        for line in source:
            text = line.removesuffix(b"\n").removesuffix(b"\r")
            if given.json and not text.strip():
                continue
            yield from_json(text, topic) if given.json else said.message(topic, text)


@contextmanager
def _input(file: Path | None) -> Iterator[Any]:
    if file is None:
        yield sys.stdin.buffer
        return
    try:
        source = file.open("rb")
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from error
    with source:
        if not render.ERRORS.is_terminal:
            yield source
            return
        from rich.progress import wrap_file  # noqa: PLC0415 - only for eyes

        size_bytes = file.stat().st_size
        with wrap_file(
            source, size_bytes, description="publishing", console=render.ERRORS, transient=True
        ) as counted:
            yield counted


def _pair(text: str) -> tuple[str, bytes | None]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigError(f"--header {text!r}: write NAME=VALUE")
    return name, value.encode()


def _milliseconds(text: str) -> int:
    try:
        return parse_quantity(text, "ms")
    except ValueError as error:
        raise ConfigError(f"--expiry {text}: {error}") from error
