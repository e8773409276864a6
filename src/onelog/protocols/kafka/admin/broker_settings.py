"""The table of broker settings: the configuration of this node, under Kafka's names.

Rules: they are read from the configuration file, and changed there. A broker setting that is the
default of a topic setting comes from the table of topic settings, so that both always agree.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from onelog.config import Config
from onelog.config.listeners import KafkaListener
from onelog.protocols.kafka.admin.choosing import default_config
from onelog.protocols.kafka.admin.setting import TopicSetting
from onelog.protocols.kafka.admin.topic_settings import TOPIC_SETTINGS
from onelog.protocols.kafka.admin.values import ValueType, shown

_MINUTE_MS: Final = 60_000
_UNBOUNDED: Final = 2**31 - 1
"""Kafka's number for "no limit", where OneLog has 0."""


class BrokerSetting(NamedTuple):
    """One setting of a node."""

    name: str
    type: ValueType
    about: str
    read: Callable[[Config], object]
    is_said: Callable[[Config], bool] = lambda _: False
    """Whether the configuration sets it, even to its default."""

    def text(self, config: Config) -> str:
        """Its value, as Kafka writes it."""
        return shown(self.read(config))


def log_dir(config: Config) -> str:
    """Where all data lies."""
    return str(Path(config.data_dir).absolute())


def _enabled(config: Config) -> list[tuple[str, KafkaListener]]:
    found = (("PLAINTEXT", config.listeners.kafka), ("SSL", config.listeners.kafka_tls))
    return [(name, row) for name, row in found if row.enabled]


def _listeners(config: Config) -> list[str]:
    return [f"{name}://{row.host}:{row.port}" for name, row in _enabled(config)]


def _advertised(config: Config) -> list[str]:
    return [
        f"{name}://{row.advertised or f'{row.host}:{row.port}'}" for name, row in _enabled(config)
    ]


def _is_advertised(config: Config) -> bool:
    return any(row.advertised for _name, row in _enabled(config))


_T = ValueType

_OWN: Final = (
    BrokerSetting("node.id", _T.INT, "Number of this node.", lambda c: c.node.id),
    BrokerSetting("broker.id", _T.INT, "Number of this node.", lambda c: c.node.id),
    BrokerSetting("listeners", _T.LIST, "Where Kafka clients may connect.", _listeners),
    BrokerSetting(
        "advertised.listeners",
        _T.LIST,
        "Where clients are told to connect.",
        _advertised,
        _is_advertised,
    ),
    BrokerSetting("log.dirs", _T.LIST, "Directory of all data.", lambda c: [log_dir(c)]),
    BrokerSetting(
        "auto.create.topics.enable",
        _T.BOOLEAN,
        "Whether a client that asks for an unknown topic makes it.",
        lambda c: c.kafka.topics.auto_create,
    ),
    BrokerSetting(
        "num.partitions",
        _T.INT,
        "Partitions of a topic whose creator does not say how many.",
        lambda c: c.kafka.topics.partitions,
    ),
    BrokerSetting("default.replication.factor", _T.INT, "Replicas of a topic.", lambda _: 1),
    BrokerSetting("delete.topic.enable", _T.BOOLEAN, "Topics may be deleted.", lambda _: True),
    BrokerSetting(
        "offsets.topic.replication.factor", _T.SHORT, "Replicas of offsets.", lambda _: 1
    ),
    BrokerSetting(
        "transaction.state.log.replication.factor",
        _T.SHORT,
        "Replicas of transactions.",
        lambda _: 1,
    ),
    BrokerSetting(
        "transaction.state.log.min.isr", _T.INT, "Replicas that must agree.", lambda _: 1
    ),
    BrokerSetting(
        "socket.request.max.bytes",
        _T.INT,
        "Bytes of one request.",
        lambda c: c.kafka.limits.request_bytes,
    ),
    BrokerSetting(
        "fetch.max.bytes",
        _T.INT,
        "Bytes of records in one answer to a fetch.",
        lambda c: c.kafka.limits.fetch_bytes,
    ),
    BrokerSetting(
        "max.connections",
        _T.INT,
        "Connections at once.",
        lambda c: c.kafka.limits.connections or _UNBOUNDED,
    ),
    BrokerSetting(
        "max.connections.per.ip",
        _T.INT,
        "Connections from one address at once.",
        lambda c: c.kafka.limits.connections_per_ip or _UNBOUNDED,
    ),
    BrokerSetting(
        "connections.max.idle.ms",
        _T.LONG,
        "A connection without a request for so long is closed.",
        lambda c: c.kafka.limits.idle_ms,
    ),
    BrokerSetting(
        "connections.max.reauth.ms",
        _T.LONG,
        "How long a login by SASL counts; 0: for ever.",
        lambda c: c.kafka.limits.reauth_ms,
    ),
    BrokerSetting(
        "group.min.session.timeout.ms",
        _T.INT,
        "Shortest session timeout that a member may ask for.",
        lambda c: c.kafka.groups.session_timeout_min_ms,
    ),
    BrokerSetting(
        "group.max.session.timeout.ms",
        _T.INT,
        "Longest session timeout that a member may ask for.",
        lambda c: c.kafka.groups.session_timeout_max_ms,
    ),
    BrokerSetting(
        "group.initial.rebalance.delay.ms",
        _T.INT,
        "How long the first member waits for others to join.",
        lambda c: c.kafka.groups.initial_rebalance_delay_ms,
    ),
    BrokerSetting(
        "group.max.size", _T.INT, "Members of one group.", lambda c: c.kafka.groups.members
    ),
    BrokerSetting(
        "offset.metadata.max.bytes",
        _T.INT,
        "Bytes of text beside a committed offset.",
        lambda c: c.kafka.groups.metadata_bytes,
    ),
    BrokerSetting(
        "offsets.retention.minutes",
        _T.INT,
        "How long offsets of a group without members are kept.",
        lambda c: c.kafka.groups.offsets_retention_ms // _MINUTE_MS,
    ),
    BrokerSetting(
        "transaction.max.timeout.ms",
        _T.INT,
        "Longest timeout that a producer may ask for.",
        lambda c: c.kafka.transactions.timeout_max_ms,
    ),
    BrokerSetting(
        "transactional.id.expiration.ms",
        _T.INT,
        "A transactional id unused for so long is forgotten.",
        lambda c: c.kafka.transactions.id_expiry_ms,
    ),
)


def _of_topics(row: TopicSetting) -> BrokerSetting:
    assert row.synonym is not None

    def read(config: Config) -> object:
        return row.read(default_config(config.defaults.stream, "defaults", "defaults", 1))

    return BrokerSetting(row.synonym, row.type, row.about, read)


BROKER_SETTINGS: Final[dict[str, BrokerSetting]] = {
    setting.name: setting
    for setting in (
        *_OWN,
        *(_of_topics(row) for row in TOPIC_SETTINGS.values() if row.synonym is not None),
    )
}
