"""DescribeConfigs: every known setting of a topic or of this node, and where its value comes from.

Rules: a name that is not known is left out, as Kafka does. A view whose records lie in one stream
shows the settings of that stream, and can change none.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from onelog.base.errors import OnelogError
from onelog.broker import StreamConfig
from onelog.config import Config
from onelog.config.streams import StreamDefaults
from onelog.protocols.kafka.admin.answers import Shown, answer, described_row, element
from onelog.protocols.kafka.admin.broker_settings import BROKER_SETTINGS, BrokerSetting
from onelog.protocols.kafka.admin.choosing import default_config
from onelog.protocols.kafka.admin.resources import (
    ResourceType,
    check_broker,
    no_resource,
    topic_for,
)
from onelog.protocols.kafka.admin.setting import TopicSetting
from onelog.protocols.kafka.admin.topic_settings import FILTER, TOPIC_SETTINGS
from onelog.protocols.kafka.admin.values import ValueSource
from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.codec import Body, given
from onelog.protocols.kafka.errors import ErrorCode, code_of
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.room import AnswerRoom
from onelog.protocols.kafka.topics import KafkaTopic

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub

_KEY: Final = ApiKey.DESCRIBE_CONFIGS


async def describe_configs(hub: Hub, request: Request) -> bytes:
    """Describe settings of resources."""
    described, room = [], AnswerRoom()
    await hub.elsewhere.learn(
        row.resource_name
        for row in request.body.resources
        if row.resource_type == ResourceType.TOPIC
    )
    for resource in request.body.resources:
        described.append(_describe(hub, request, resource, room))
        await asyncio.sleep(0)  # there may be thousands, and others have their turn
    return answer(_KEY, request.version, described)


def _describe(hub: Hub, request: Request, resource: Any, room: AnswerRoom) -> bytes:
    body: Body = {
        "error_code": ErrorCode.none,
        "error_message": None,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": [],
    }
    rows: list[bytes] = []
    try:
        room.take(0)
        wanted = set(resource.configuration_keys or ())
        synonyms = request.body.include_synonyms
        documentation = given(request.body, "include_documentation", False)
        rows = [
            described_row(request.version, row, synonyms=synonyms, documentation=documentation)
            for row in _settings(hub, request, resource.resource_type, resource.resource_name)
            if not wanted or row.name in wanted
        ]
        room.take(sum(map(len, rows)))
    except OnelogError as error:
        body |= {"error_code": code_of(error), "error_message": str(error)}
    return element(_KEY, request.version, "results", body, rows)


def _settings(hub: Hub, request: Request, kind: int, name: str) -> list[Shown]:
    if kind == ResourceType.TOPIC:
        return topic_rows(hub, topic_for(hub, request, None, name))
    if kind == ResourceType.BROKER:
        check_broker(hub, request, name, to_see=True)
        if not name:
            return []  # settings for all brokers at once: there are none
        return [_broker_row(hub.config, row) for row in BROKER_SETTINGS.values()]
    raise no_resource(kind)


# -- topics


def topic_rows(hub: Hub, topic: KafkaTopic) -> list[Shown]:
    """Every setting of a topic."""
    stream = topic.stream
    if stream is not None:
        return config_rows(hub.config, stream.config)
    holders = hub.broker.streams.holders(topic.address)
    config = (
        holders[0].config
        if len(holders) == 1
        else default_config(hub.config.defaults.stream, "view", "view", topic.partition_count)
    )
    rows = config_rows(hub.config, config, topic.address)
    return [row._replace(read_only=True) for row in rows]


def config_rows(config: Config, stream: StreamConfig, shown: str = "") -> list[Shown]:
    """Every setting of a stream's topic; `shown` is the filter of a view."""
    now = _defaults(config.defaults.stream, stream)
    always = _defaults(StreamDefaults(), stream)
    rows = {row.name: _topic_row(row, stream, now, always) for row in TOPIC_SETTINGS.values()}
    if shown:
        origin = (FILTER, shown, ValueSource.TOPIC)
        rows[FILTER] = rows[FILTER]._replace(value=shown, synonyms=(origin,))
    return list(rows.values())


def _defaults(defaults: StreamDefaults, stream: StreamConfig) -> StreamConfig:
    return default_config(defaults, stream.name, stream.name, stream.partitions)


def _topic_row(
    row: TopicSetting, stream: StreamConfig, now: StreamConfig, always: StreamConfig
) -> Shown:
    """`now` are the defaults of this broker's configuration, `always` those without a
    configuration."""
    value, default, built_in = row.text(stream), row.text(now), row.text(always)
    origin = row.synonym or row.name
    synonyms = [(origin, built_in, ValueSource.DEFAULT)]
    if default != built_in:
        synonyms.insert(0, (origin, default, ValueSource.BROKER))
    if row.name in stream.chosen or value != default:
        synonyms.insert(0, (row.name, value, ValueSource.TOPIC))
    stays = row.fixed or row.at_creation
    return Shown(row.name, value, row.type, row.about, stays, tuple(synonyms))


# -- this node


def _broker_row(config: Config, row: BrokerSetting) -> Shown:
    value, built_in = row.text(config), row.text(Config())
    synonyms = [(row.name, built_in, ValueSource.DEFAULT)]
    if value != built_in or row.is_said(config):
        synonyms.insert(0, (row.name, value, ValueSource.BROKER))
    return Shown(row.name, value, row.type, row.about, True, tuple(synonyms))
