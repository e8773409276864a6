"""AlterConfigs and IncrementalAlterConfigs: other settings for topics, all of them or one by one.

Rules: a resource changes as a whole or not at all. The settings of this node stand in its
configuration file and are changed there.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from onelog.base.errors import InvalidRequest, OnelogError
from onelog.broker import Action, StreamConfig
from onelog.protocols.kafka.admin.broker_settings import BROKER_SETTINGS
from onelog.protocols.kafka.admin.choosing import (
    default_config,
    put_all,
    setting_of,
    with_default,
)
from onelog.protocols.kafka.admin.resources import (
    ResourceType,
    check_broker,
    need_stream,
    no_resource,
    topic_for,
)
from onelog.protocols.kafka.admin.topic_settings import TOPIC_SETTINGS
from onelog.protocols.kafka.admin.values import ValueType, read_list, shown
from onelog.protocols.kafka.codec import Body
from onelog.protocols.kafka.errors import ErrorCode, KafkaError, code_of
from onelog.protocols.kafka.request import Request

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub

Change = Callable[[StreamConfig, StreamConfig, Any], StreamConfig]
"""(current configuration, defaults, request) → new configuration. Raises KafkaError."""


class Operation(IntEnum):
    """What to do with a setting, as the protocol numbers it."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


async def alter_configs(hub: Hub, request: Request) -> Body:
    """Set all settings of resources: those that are not named go back to their defaults."""
    return await _alter(hub, request, _replaced)


async def incremental_alter_configs(hub: Hub, request: Request) -> Body:
    """Set some settings of resources."""
    return await _alter(hub, request, _changed)


async def _alter(hub: Hub, request: Request, change: Change) -> Body:
    named = Counter((row.resource_type, row.resource_name) for row in request.body.resources)
    answers = []
    for resource in request.body.resources:
        answer: Body = {
            "error_code": ErrorCode.none,
            "error_message": None,
            "resource_type": resource.resource_type,
            "resource_name": resource.resource_name,
        }
        try:
            if named[resource.resource_type, resource.resource_name] > 1:
                raise KafkaError(
                    ErrorCode.invalid_request, "a request names each resource at most once"
                )
            await _alter_one(hub, request, resource, change)
        except OnelogError as error:
            answer |= {"error_code": code_of(error), "error_message": str(error)}
        answers.append(answer)
        await asyncio.sleep(0)  # there may be thousands, and others have their turn
    return {"responses": answers}


async def _alter_one(hub: Hub, request: Request, resource: Any, change: Change) -> None:
    kind, name = resource.resource_type, resource.resource_name
    repeated = [key for key, n in Counter(row.name for row in resource.configs).items() if n > 1]
    if repeated:
        raise KafkaError(
            ErrorCode.invalid_request, f"{repeated[0][:100]!r} is named more than once"
        )
    if kind == ResourceType.BROKER:
        check_broker(hub, request, name)
        _refuse_broker(resource)
        return
    if kind != ResourceType.TOPIC:
        raise no_resource(kind)
    topic = topic_for(hub, request, Action.CONFIGURE, name)
    need_stream(topic, "has no settings of its own")
    assert topic.stream is not None
    old = topic.stream.config
    defaults = default_config(
        hub.config.defaults.stream, old.name, topic.address, len(topic.stream.partitions)
    )
    new = change(old, defaults, resource.configs)
    try:
        if request.body.validate_only:
            hub.broker.streams.check_altered(new)
        elif new != old:
            await hub.broker.streams.alter(new)
    except InvalidRequest as error:
        raise KafkaError(ErrorCode.invalid_config, str(error)) from None


def _refuse_broker(resource: Any) -> None:
    for row in resource.configs:
        known = row.name in BROKER_SETTINGS
        raise KafkaError(
            ErrorCode.invalid_request,
            f"{row.name[:100]!r} "
            + (
                "is read from the broker's configuration file: change it there"
                if known
                else "is no broker setting"
            ),
        )


# -- what is to be


def _value(row: Any) -> str:
    if row.value is None:
        raise KafkaError(ErrorCode.invalid_request, f"{row.name[:100]!r} needs a value")
    value: str = row.value
    return value


def _replaced(old: StreamConfig, defaults: StreamConfig, rows: Any) -> StreamConfig:
    config = old
    for name in TOPIC_SETTINGS:
        config = with_default(config, name, defaults)
    return put_all(config, {row.name: _value(row) for row in rows})


def _changed(old: StreamConfig, defaults: StreamConfig, rows: Any) -> StreamConfig:
    config, values = old, dict[str, str]()
    for row in rows:
        try:
            operation = Operation(row.config_operation)
        except ValueError:
            raise KafkaError(
                ErrorCode.invalid_request, f"there is no operation {row.config_operation}"
            ) from None
        if operation is Operation.DELETE:
            if row.name in TOPIC_SETTINGS:  # a setting that does not exist need not be deleted
                config = with_default(config, row.name, defaults)
            continue
        setting = setting_of(row.name)
        if operation is Operation.SET:
            values[row.name] = _value(row)
        elif setting.type is not ValueType.LIST:
            raise KafkaError(
                ErrorCode.invalid_config, f"{row.name} is no list: nothing is added or taken away"
            )
        else:
            words = read_list(row.name, setting.text(config))
            given = read_list(row.name, _value(row))
            if operation is Operation.APPEND:
                words += [word for word in given if word not in words]
            else:
                words = [word for word in words if word not in given]
            values[row.name] = shown(words)
    return put_all(config, values)
