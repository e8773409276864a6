"""Makes the options of source and sinks from a pipeline's keys; the connector checks them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from onelog.base.errors import ConfigError, OnelogError
from onelog.pipelines.spec import Pipeline, Target
from onelog.pipelines.workspace import Workspace, as_text

PARTS_ASKED: Final = 64
"""Partitions of a source that are asked whether their stream is a table."""


def source_options(
    pipeline: Pipeline, name: str, target: str, workspace: Workspace
) -> dict[str, str]:
    """The options of a source that reads topics, for the query of a target."""
    source = pipeline.sources[name]
    found = workspace.connection(pipeline.broker)
    if source.topics is not None:
        found["subscribe"] = ",".join(source.topics)
    elif source.filter is not None:
        found["filter"] = source.filter
    elif source.stream is not None:
        found["stream"] = source.stream
    else:
        found["subscribePattern"] = source.pattern or ""
    found |= starting(source.start, f"sources.{name}.from")
    for key, option in (("decode", "decode"), ("schema", "valueSchema"), ("mode", "mode")):
        text = getattr(source, key)
        if text:
            found[option] = text
    if source.headers:
        found["includeHeaders"] = "true"
    if source.rows_per_trigger is not None:
        found["maxOffsetsPerTrigger"] = str(source.rows_per_trigger)
    found["group.id"] = f"pipeline-{pipeline.name}-{target}"
    return found | as_text(source.options)


def starting(start: str | int, key: str) -> dict[str, str]:
    """Where reading begins: earliest, latest, or a time."""
    if start in ("earliest", "latest"):
        return {"startingOffsets": str(start)}
    if isinstance(start, int):
        time_ms = start
    else:
        try:
            moment = datetime.fromisoformat(start)
        except ValueError:
            raise ConfigError(
                f"{key} = {start!r}: use earliest, latest, milliseconds since 1970, or a time"
                " such as 2026-01-31T12:00:00Z"
            ) from None
        whole = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        time_ms = int(whole.timestamp() * 1000)
    return {
        "startingTimestamp": str(time_ms),
        "startingOffsetsByTimestampStrategy": "latest",
    }


def target_options(
    pipeline: Pipeline, name: str, workspace: Workspace
) -> tuple[str, dict[str, str]]:
    """The format and the options of a target that is a topic or a table."""
    target = pipeline.targets[name]
    if target.topic is not None:
        found = workspace.connection(pipeline.broker) | {"topic": target.topic}
        return "onelog", found | as_text(target.options)
    return "onelog-table", _table_options(pipeline, target, workspace)


def _table_options(pipeline: Pipeline, target: Target, workspace: Workspace) -> dict[str, str]:
    found = workspace.table(target)
    lists = {"keys": target.keys, "orderBy": target.order_by, "partitionBy": target.partition_by}
    found |= {option: ",".join(names) for option, names in lists.items() if names}
    if target.mode != "append":
        found["mode"] = target.mode
    if target.delete_column is not None:
        found["deleteColumn"] = target.delete_column
    if target.dead_letter_table is not None:
        kind = found["tableFormat"]
        found["deadLetterTable"] = workspace.table_name(kind, target.dead_letter_table)
    if target.dead_letter_topic is not None:
        found["deadLetterTopic"] = target.dead_letter_topic
        reached = workspace.connection(pipeline.broker)
        found |= {f"dead.{option}": text for option, text in reached.items()}
    return found | as_text(target.options)


def check_options(pipeline: Pipeline, workspace: Workspace) -> None:
    """Ask the connector whether it takes all of it. Raises ConfigError that begins with the key."""
    from onelog.lake.options import parse_options  # noqa: PLC0415 - only who validates
    from onelog.spark.sink.options import sink_options  # noqa: PLC0415
    from onelog.spark.source.options import source_options as check_source  # noqa: PLC0415

    def of_topics(options: Mapping[str, str]) -> object:
        return check_source(options, streaming=True)

    for name, source in pipeline.sources.items():
        if source.named() is None:
            options = source_options(pipeline, name, "any", workspace)
            _checked(f"sources.{name}", of_topics, options)
        else:
            _checked(f"sources.{name}", parse_options, workspace.table(source))
    for name, target in pipeline.targets.items():
        if target.console:
            continue
        kind, options = target_options(pipeline, name, workspace)
        check = sink_options if kind == "onelog" else parse_options
        _checked(f"targets.{name}", check, options)
    for name, upkeep in pipeline.upkeep.items():
        _checked(f"upkeep.{name}", parse_options, workspace.table(upkeep))


def check_topics(pipeline: Pipeline, workspace: Workspace) -> None:
    """Ask the broker for every topic that is read. Raises ConfigError that begins with the key."""
    from onelog.kafka_client import Client  # noqa: PLC0415 - only who validates
    from onelog.spark.source.options import source_options as parsed  # noqa: PLC0415
    from onelog.spark.source.topics import find_topics  # noqa: PLC0415

    for name, source in pipeline.sources.items():
        if source.named() is None:
            options = parsed(source_options(pipeline, name, "any", workspace), streaming=True)
            try:
                with Client(options.access) as client:
                    find_topics(client, options.topics, lenient=not options.fail_on_data_loss)
            except OnelogError as error:
                raise ConfigError(f"sources.{name}: {error}") from None


def second_copies(pipeline: Pipeline, workspace: Workspace) -> list[str]:
    """Sources whose records are a table already, if a target of the pipeline makes another one."""
    from onelog.kafka_client import Client  # noqa: PLC0415 - only who runs
    from onelog.spark.source.options import source_options as parsed  # noqa: PLC0415
    from onelog.spark.source.topics import find_topics, parts_of  # noqa: PLC0415

    if not any(row.named() and row.mode == "append" for row in pipeline.targets.values()):
        return []
    notes = []
    for name, source in pipeline.sources.items():
        if source.named() is not None:
            continue
        options = parsed(source_options(pipeline, name, "any", workspace), streaming=True)
        quick = replace(options.access, timeout_s=0.0)
        # A broker that is away is not this note's concern: the run waits for it.
        with contextlib.suppress(OnelogError), Client(quick) as client:
            found = find_topics(client, options.topics, lenient=True)
            parts = [client.cold(*part, 0, 0) for part in parts_of(found)[:PARTS_ASKED]]
            tables = sorted({part.table for part in parts if part and part.table})
            notes += [
                f"sources.{name} is a table already, {kind}('{table}'): ask it by SQL. This"
                " pipeline keeps a second copy of the records"
                for kind, table in tables
            ]
    return notes


def _checked(
    path: str, check: Callable[[Mapping[str, str]], Any], options: Mapping[str, str]
) -> None:
    try:
        check(options)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
