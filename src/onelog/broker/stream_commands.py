"""Commands on streams as messages: what `onelog stream` sends, and what runs them.

Rules: a server gets them over its control socket (`base/commands.py` has the form). Settings that a
command leaves out have the configuration's default, or stay as they are. Streams of the broker
itself and those that a protocol makes (their captures begin with `$`) are not for people to change.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import msgspec

from onelog.base.commands import decoded, run_decoded
from onelog.base.errors import InvalidName, InvalidRequest, NotAuthorized
from onelog.base.names import from_dotted
from onelog.broker.broker import MAIN, Broker
from onelog.config.streams import StreamDefaults
from onelog.log.config import Cleanup, Retention, StreamConfig, tier_problem
from onelog.log.handle import PartitionFacts, PartitionHandle
from onelog.log.promises import Durability
from onelog.log.stream import Stream
from onelog.log.tier_config import OFF, ColdFormat, StoreSupport, TierConfig

SUBJECT: Final = "stream"


class StreamChoice(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings of a stream that a command may set; None: the default, or unchanged."""

    partitions: int | None = None
    engine: str | None = None
    durability: Durability | None = None
    replicas: int | None = None
    """On how many nodes each partition lies; 0: as the cluster gives."""
    min_insync: int | None = None
    """How many of them must have a record before it is answered; 0: as the cluster gives."""
    retention_age_ms: int | None = None
    retention_bytes: int | None = None
    cleanup: Cleanup | None = None
    tier: str | None = None
    """The name of a format, `none`, or the URL of the broker's store (as `log`)."""
    tier_copy: bool | None = None
    tier_delete_when_off: bool | None = None
    local_age_ms: int | None = None
    local_bytes: int | None = None
    tier_commit_ms: int | None = None
    tier_columns: str | None = None
    tier_table: str | None = None
    tier_catalog: str | None = None
    tier_snapshot_age_ms: int | None = None
    tier_table_age_ms: int | None = None


class CreateStream(msgspec.Struct, frozen=True, kw_only=True, tag="stream.create"):
    """Make a stream."""

    name: str
    captures: tuple[str, ...] | None = None
    """None: the topic that the stream's name means."""
    chosen: StreamChoice = StreamChoice()


class AlterStream(msgspec.Struct, frozen=True, kw_only=True, tag="stream.alter"):
    """Change a stream while it runs."""

    name: str
    capture: tuple[str, ...] = ()
    """Filters that it captures from now on, too."""
    release: tuple[str, ...] = ()
    """Filters that it no longer captures; records of them stay readable."""
    chosen: StreamChoice = StreamChoice()


class DeleteStream(msgspec.Struct, frozen=True, kw_only=True, tag="stream.delete"):
    """Delete a stream and its records."""

    name: str


class StartStreamOver(msgspec.Struct, frozen=True, kw_only=True, tag="stream.start-over"):
    """At the next start, give up the data of a damaged stream, also of one of the broker's own."""

    name: str


class ListStreams(msgspec.Struct, frozen=True, kw_only=True, tag="stream.list"):
    """Show every stream but the broker's own."""


class ShowStream(msgspec.Struct, frozen=True, kw_only=True, tag="stream.show"):
    """Show all settings and partitions of one stream, also of one of the broker's own."""

    name: str


StreamCommand = (
    CreateStream | AlterStream | DeleteStream | StartStreamOver | ListStreams | ShowStream
)

PARTITIONS_SHOWN: Final = 100
"""Partitions shown of one stream. The admin API shows all of them, in pages."""


class StreamRow(msgspec.Struct, frozen=True, kw_only=True):
    """The row of a stream in a list."""

    name: str
    captures: tuple[str, ...]
    partitions: int
    records: int
    size_bytes: int


class PartitionRow(msgspec.Struct, frozen=True, kw_only=True):
    """The row of a partition."""

    partition: int
    start_offset: int
    end_offset: int
    size_bytes: int
    state: str
    local_start_offset: int = 0
    cold_bytes: int = 0
    """In the object store."""


class StreamDetail(msgspec.Struct, frozen=True, kw_only=True):
    """Everything of one stream."""

    settings: dict[str, Any]
    """Each setting in force by its dotted name; -1 is no bound."""
    partitions: tuple[PartitionRow, ...]
    """The first ones, `PARTITIONS_SHOWN` at most."""


class StreamAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a command."""

    streams: tuple[StreamRow, ...] = ()
    detail: StreamDetail | None = None
    error: str = ""
    """The class of the error; empty when all went well."""
    message: str = ""


async def run_stream_command(broker: Broker, defaults: StreamDefaults, message: bytes) -> bytes:
    """Run the command of a message. Returns the answer as a message, also after an error."""
    return await run_decoded(message, StreamCommand, partial(run_stream, broker, defaults))


async def run_stream(
    broker: Broker, defaults: StreamDefaults, command: StreamCommand
) -> StreamAnswer:
    """Run a command. Raises its error."""
    streams = broker.streams
    match command:
        case CreateStream():
            partitions = command.chosen.partitions or defaults.partitions
            captures = captures_of(command.name, command.captures)
            config = default_stream(defaults, command.name, captures, partitions)
            _check_captures(captures)
            _check_replicas(broker, command.chosen)
            config = _with_choice(config, command.chosen, streams.checks.store_support)
            if command.chosen.tier is None:
                config = with_fitting_tier(config)
            made = await streams.create(config)
            return StreamAnswer(streams=(_row(made),))
        case AlterStream():
            config = _theirs(streams.get(command.name)).config
            _check_captures((*command.capture, *command.release))
            _check_replicas(broker, command.chosen)
            changed = await streams.alter(
                _with_choice(
                    _captured(config, command), command.chosen, streams.checks.store_support
                )
            )
            return StreamAnswer(streams=(_row(changed),))
        case DeleteStream():
            if command.name == MAIN:
                raise NotAuthorized(
                    "the stream main is the home of every topic that no other one captures, and"
                    " stays"
                )
            await streams.delete(_theirs(streams.get(command.name)).name)
            return StreamAnswer()
        case StartStreamOver():
            await streams.start_over(command.name)
            return StreamAnswer()
        case ListStreams():
            shown = [stream for stream in streams.streams() if not stream.is_internal]
            return StreamAnswer(streams=tuple(map(_row, shown)))
        case ShowStream():
            found = streams.get(command.name)
            return StreamAnswer(streams=(_row(found),), detail=_detail(found))


def captures_of(name: str, given: tuple[str, ...] | None) -> tuple[str, ...]:
    """What a new stream captures: what was said, else the topic of its name, as Kafka has it.

    Raises InvalidName when the name means no topic.
    """
    if given is not None:
        return given
    try:
        return (from_dotted(name),)
    except InvalidName as error:
        raise InvalidName(
            f"the stream name {name!r} stands for no topic ({error}). A name has a-z A-Z 0-9 . _ -,"
            " and plant.a stands for plant/a; or say what the stream captures"
        ) from None


def default_stream(
    defaults: StreamDefaults, name: str, captures: tuple[str, ...], partitions: int
) -> StreamConfig:
    """A stream with the defaults of the broker's configuration."""
    return StreamConfig(
        name=name,
        captures=captures,
        partitions=partitions,
        engine=defaults.engine,
        durability=Durability(defaults.durability),
        retention=Retention(age_ms=defaults.retention_age_ms, bytes=defaults.retention_bytes),
        message_bytes_max=defaults.message_bytes_max,
        segment_bytes=defaults.segment_bytes,
        segment_age_ms=defaults.segment_age_ms,
        tier=default_tier(defaults),
    )


def default_tier(defaults: StreamDefaults) -> TierConfig:
    """The tier of the broker's configuration."""
    return TierConfig(
        format=ColdFormat(defaults.tier),
        local_age_ms=defaults.local_age_ms,
        local_bytes=defaults.local_bytes,
    )


def with_fitting_tier(config: StreamConfig) -> StreamConfig:
    """The stream without a tier that only the defaults gave it, and that it cannot have."""
    if tier_problem(config) is None:
        return config
    return msgspec.structs.replace(
        config, tier=msgspec.structs.replace(config.tier, format=OFF.format)
    )


def _with_choice(config: StreamConfig, chosen: StreamChoice, support: StoreSupport) -> StreamConfig:
    keep = config.retention
    age_ms, size = chosen.retention_age_ms, chosen.retention_bytes
    copies, replicas, insync = config.replication, chosen.replicas, chosen.min_insync
    return msgspec.structs.replace(
        config,
        partitions=config.partitions if chosen.partitions is None else chosen.partitions,
        engine=chosen.engine or config.engine,
        durability=chosen.durability or config.durability,
        cleanup=config.cleanup if chosen.cleanup is None else chosen.cleanup,
        retention=msgspec.structs.replace(
            keep,
            age_ms=keep.age_ms if age_ms is None else age_ms,
            bytes=keep.bytes if size is None else size,
        ),
        replication=msgspec.structs.replace(
            copies,
            factor=copies.factor if replicas is None else replicas,
            min_insync=copies.min_insync if insync is None else insync,
        ),
        tier=_with_tier(config.tier, chosen, support),
    )


def _with_tier(tier: TierConfig, chosen: StreamChoice, support: StoreSupport) -> TierConfig:
    given: dict[str, Any] = {
        "copy": chosen.tier_copy,
        "delete_when_off": chosen.tier_delete_when_off,
        "local_age_ms": chosen.local_age_ms,
        "local_bytes": chosen.local_bytes,
        "commit_ms": chosen.tier_commit_ms,
        "columns": chosen.tier_columns,
        "table": chosen.tier_table,
        "catalog": chosen.tier_catalog,
        "snapshot_age_ms": chosen.tier_snapshot_age_ms,
        "table_age_ms": chosen.tier_table_age_ms,
    }
    if chosen.tier is not None:
        try:
            given["format"] = support.format_for(chosen.tier)
        except ValueError as error:
            raise InvalidRequest(str(error)) from None
    return msgspec.structs.replace(
        tier, **{name: value for name, value in given.items() if value is not None}
    )


def _captured(config: StreamConfig, command: AlterStream) -> StreamConfig:
    missing = set(command.release) - set(config.captures)
    if missing:
        raise InvalidRequest(f"stream {config.name} does not capture {min(missing)!r}")
    if config.name == MAIN and (command.capture or command.release):
        raise NotAuthorized(
            "the stream main captures every topic that no other stream captures: its captures"
            " cannot change"
        )
    left = tuple(text for text in config.captures if text not in command.release)
    return msgspec.structs.replace(config, captures=(*left, *command.capture))


def _check_replicas(broker: Broker, chosen: StreamChoice) -> None:
    if (chosen.replicas or 0) > 1 and not broker.streams.hosting.is_shared:
        raise InvalidRequest(
            f"this node is on its own, and cannot keep {chosen.replicas} replicas: only a cluster"
            " of several nodes can"
        )


def _check_captures(captures: tuple[str, ...]) -> None:
    for text in captures:
        if text.startswith("$"):
            raise NotAuthorized(
                f"{text!r} cannot be captured: topics that begin with $ belong to the broker"
            )


def _theirs(stream: Stream) -> Stream:
    config = stream.config
    if config.internal or any(text.startswith("$") for text in config.captures):
        raise NotAuthorized(
            f"the stream {config.name!r} belongs to the broker: no command changes it"
        )
    return stream


def _row(stream: Stream) -> StreamRow:
    return StreamRow(
        name=stream.name,
        captures=stream.config.captures,
        partitions=len(stream.partitions),
        records=stream.record_count,
        size_bytes=stream.size_bytes,
    )


def _detail(stream: Stream) -> StreamDetail:
    return StreamDetail(
        settings=dict(_flatten(msgspec.to_builtins(stream.config), "")),
        partitions=tuple(
            _partition_row(row, row.facts()) for row in stream.partitions[:PARTITIONS_SHOWN]
        ),
    )


def _partition_row(partition: PartitionHandle, facts: PartitionFacts) -> PartitionRow:
    tier = partition.tier_status()
    return PartitionRow(
        partition=partition.id,
        local_start_offset=partition.local_start_offset,
        cold_bytes=0 if tier is None else tier.cold_bytes,
        start_offset=facts.ends.start,
        end_offset=facts.end,
        size_bytes=facts.size_bytes,
        state=facts.state,
    )


def _flatten(tree: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def decode_stream_answer(message: bytes) -> StreamAnswer:
    """The answer of a message. Raises the error that it reports."""
    return decoded(message, StreamAnswer)
