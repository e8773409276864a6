"""Settings over the protocol: what is shown and from where, what changes, and what is refused."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onelog.broker import Action, AllowAll, Cleanup, Durability, Kind
from onelog.config import Config
from onelog.config.streams import Defaults, StreamDefaults
from onelog.protocols.kafka.admin.broker_settings import BROKER_SETTINGS
from onelog.protocols.kafka.admin.topic_settings import TOPIC_SETTINGS
from onelog.protocols.kafka.apis import APIS, ApiKey
from onelog.protocols.kafka.errors import ErrorCode
from tests.support.kafka_admin import (
    APPEND,
    BROKER,
    DELETE,
    SET,
    SUBTRACT,
    TOPIC,
    Denies,
    Desk,
    desk,
)

E = ErrorCode
K = ApiKey
FROM_TOPIC, FROM_BROKER, FROM_DEFAULT = 1, 4, 5


def versions(key: ApiKey) -> range:
    return range(APIS[key].first, APIS[key].last + 1)


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path) as made:
        await made.create("t", 2, retention__ms="1000")
        yield made


# -- DescribeConfigs


@pytest.mark.parametrize("version", versions(K.DESCRIBE_CONFIGS))
async def test_every_setting_of_a_topic_is_shown_with_its_origin(admin, version) -> None:
    told = await admin.settings("t", version=version)
    assert told.keys() == TOPIC_SETTINGS.keys()
    assert (told["retention.ms"].value, told["retention.ms"].config_source) == ("1000", FROM_TOPIC)
    assert told["segment.ms"].config_source == FROM_DEFAULT
    assert told["onelog.filter"].read_only
    assert not told["segment.ms"].read_only
    assert not any(row.synonyms for row in told.values())
    if version >= 3:
        assert told["retention.ms"].config_type == 5
        assert told["cleanup.policy"].config_type == 7
        assert told["retention.ms"].documentation is None


async def test_synonyms_say_where_a_value_would_come_from(tmp_path) -> None:
    defaults = Defaults(stream=StreamDefaults(retention_age_ms=5000))
    config = Config(defaults=defaults, data_dir=str(tmp_path))
    async with desk(tmp_path, config) as admin:
        await admin.create("plain", 1)
        await admin.create("chosen", 1, retention__ms="5000")

        async def synonyms(name: str, key: str = "retention.ms") -> list[tuple[str, str, int]]:
            row = (await admin.settings(name, synonyms=True))[key]
            assert row.config_source == row.synonyms[0].source
            return [(each.name, each.value, each.source) for each in row.synonyms]

        of_broker = [
            ("log.retention.ms", "5000", FROM_BROKER),
            ("log.retention.ms", "604800000", FROM_DEFAULT),
        ]
        assert await synonyms("plain") == of_broker
        # It was chosen, although it is what everybody has.
        assert await synonyms("chosen") == [("retention.ms", "5000", FROM_TOPIC), *of_broker]
        assert await synonyms("plain", "onelog.engine") == [
            ("onelog.engine", "segment", FROM_DEFAULT)
        ]


async def test_documentation_comes_when_it_is_asked_for(admin) -> None:
    told = await admin.settings("t", documentation=True)
    assert all(row.documentation for row in told.values())


async def test_only_what_is_asked_for_is_shown_and_unknown_names_are_left_out(admin) -> None:
    row = await admin.describe("t", keys=["segment.ms", "nope", "retention.ms"])
    assert [config.name for config in row.configs] == ["retention.ms", "segment.ms"]
    assert len((await admin.describe("t", keys=[])).configs) > 2  # as Kafka does


@pytest.mark.parametrize("version", versions(K.DESCRIBE_CONFIGS))
async def test_the_settings_of_this_node_are_shown(admin, version) -> None:
    told = await admin.settings("0", BROKER, version=version)
    assert told.keys() == BROKER_SETTINGS.keys()
    assert told["num.partitions"].value == "4"
    assert told["message.max.bytes"].value == str(16 * 1024 * 1024)
    assert all(row.read_only for row in told.values())
    # What this node was told, and what nobody said.
    assert told["log.dirs"].config_source == FROM_BROKER
    assert told["num.partitions"].config_source == FROM_DEFAULT


async def test_nothing_is_set_for_all_nodes_at_once(admin) -> None:
    assert await admin.settings("", BROKER) == {}


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nobody", E.unknown_topic_or_partition),
        (TOPIC, "no way", E.invalid_topic_exception),
        (BROKER, "7", E.invalid_request),
        (BROKER, "x", E.invalid_request),
        (8, "0", E.invalid_request),
        (99, "t", E.invalid_request),
    ],
)
async def test_resources_that_are_not_there(admin, kind, name, code) -> None:
    row = await admin.describe(name, kind)
    assert (row.error_code, row.resource_type, row.resource_name) == (code, kind, name)
    assert row.error_message
    assert row.configs == ()


async def test_who_may_not_see_a_topic_does_not_see_its_settings(tmp_path) -> None:
    keeper = AllowAll()
    async with desk(tmp_path, authorizer=keeper) as admin:
        await admin.create("t", 1)
        keeper.allows = lambda principal, action, resource, kind=Kind.TOPIC: resource != "t"
        assert (await admin.describe("t")).error_code is E.topic_authorization_failed


# -- AlterConfigs


async def replace(admin: Desk, name: str, *, version: int = 2, kind: int = TOPIC, **configs):
    rows = [{"name": key.replace("__", "."), "value": value} for key, value in configs.items()]
    answer = await admin.ask(
        K.ALTER_CONFIGS,
        version,
        resources=[{"resource_type": kind, "resource_name": name, "configs": rows}],
        validate_only=False,
    )
    return answer.responses[0]


@pytest.mark.parametrize("version", versions(K.ALTER_CONFIGS))
async def test_alter_replaces_every_setting_the_others_go_back(admin, version) -> None:
    row = await replace(admin, "t", version=version, segment__ms="60000")
    assert row.error_code is E.none
    told = await admin.settings("t")
    assert (told["segment.ms"].value, told["segment.ms"].config_source) == ("60000", FROM_TOPIC)
    assert told["retention.ms"].value == "604800000"
    assert told["retention.ms"].config_source == FROM_DEFAULT


async def test_alter_keeps_the_engine_which_cannot_change(admin) -> None:
    await admin.create("m", 1, onelog__engine="memory")
    assert (await replace(admin, "m", retention__ms="5")).error_code is E.none
    told = await admin.settings("m")
    assert told["onelog.engine"].value == "memory"
    assert told["onelog.engine"].read_only
    assert (await replace(admin, "m", onelog__engine="memory")).error_code is E.none
    refused = await replace(admin, "m", onelog__engine="segment")
    assert refused.error_code is E.invalid_config


async def test_alter_without_a_value_is_refused(admin) -> None:
    assert (await replace(admin, "t", retention__ms=None)).error_code is E.invalid_request


# -- IncrementalAlterConfigs


@pytest.mark.parametrize("version", versions(K.INCREMENTAL_ALTER_CONFIGS))
async def test_one_setting_changes_at_once_and_survives(admin, tmp_path, version) -> None:
    row = await admin.change(
        "t",
        ("max.message.bytes", SET, "5000"),
        ("message.timestamp.type", SET, "LogAppendTime"),
        ("onelog.durability", SET, "memory"),
        version=version,
    )
    assert row.error_code is E.none
    told = await admin.settings("t")
    assert told["max.message.bytes"].value == "5000"
    assert told["retention.ms"].value == "1000"  # as it was
    log = admin.broker.streams.get("t").partitions[1]
    assert log.message_bytes_max == 5000
    assert log.stamps
    assert log.durability is Durability.MEMORY
    entry = await admin.broker.store.get("streams/t")
    assert entry is not None
    assert b'"max.message.bytes"' in entry.value


async def test_settings_are_there_after_a_restart(tmp_path) -> None:
    async with desk(tmp_path) as admin:
        await admin.create("t", 1, retention__ms="1000", message__timestamp__type="LogAppendTime")
    async with desk(tmp_path) as admin:
        told = await admin.settings("t")
        assert told["retention.ms"].config_source == FROM_TOPIC
        assert admin.broker.streams.get("t").partitions[0].stamps


async def test_delete_goes_back_to_the_default(admin) -> None:
    assert (await admin.change("t", ("retention.ms", DELETE, None))).error_code is E.none
    told = (await admin.settings("t"))["retention.ms"]
    assert (told.value, told.config_source) == ("604800000", FROM_DEFAULT)
    # What nobody chose may be deleted, too, and what is not known.
    for name in ("segment.ms", "onelog.engine", "message.format.version"):
        assert (await admin.change("t", (name, DELETE, None))).error_code is E.none


async def test_lists_grow_and_shrink(admin) -> None:
    config = admin.broker.streams.get("t")
    await admin.change("t", ("cleanup.policy", APPEND, "compact"))
    assert config.config.cleanup is Cleanup.COMPACT_DELETE
    await admin.change("t", ("cleanup.policy", APPEND, "compact"))
    assert config.config.cleanup is Cleanup.COMPACT_DELETE
    await admin.change("t", ("cleanup.policy", SUBTRACT, "delete"))
    assert config.config.cleanup is Cleanup.COMPACT
    await admin.change("t", ("cleanup.policy", SUBTRACT, "compact"))
    assert config.config.cleanup is Cleanup.NONE
    assert (await admin.settings("t"))["cleanup.policy"].value == ""


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (("retention.ms", APPEND, "5"), E.invalid_config),
        (("retention.ms", SUBTRACT, "5"), E.invalid_config),
        (("retention.ms", 9, "5"), E.invalid_request),
        (("retention.ms", SET, None), E.invalid_request),
        (("retention.ms", SET, "x"), E.invalid_config),
        (("nope", SET, "5"), E.invalid_config),
        (("compression.type", SET, "brotli"), E.invalid_config),
        (("max.compaction.lag.ms", SET, "0"), E.invalid_config),
        (("onelog.filter", SET, "#"), E.invalid_config),
        (("onelog.engine", SET, "memory"), E.invalid_config),
    ],
)
async def test_a_change_that_cannot_be_changes_nothing(admin, change, code) -> None:
    before = admin.broker.streams.get("t").record
    row = await admin.change("t", ("segment.ms", SET, "60000"), change)
    assert row.error_code is code
    assert row.error_message
    assert admin.broker.streams.get("t").record == before


async def test_a_setting_may_be_named_once_only(admin) -> None:
    row = await admin.change("t", ("retention.ms", SET, "5"), ("retention.ms", DELETE, None))
    assert row.error_code is E.invalid_request


async def test_a_resource_may_be_named_once_only(admin) -> None:
    row = {
        "resource_type": TOPIC,
        "resource_name": "t",
        "configs": [{"name": "retention.ms", "config_operation": SET, "value": "5"}],
    }
    answer = await admin.ask(K.INCREMENTAL_ALTER_CONFIGS, resources=[row, row], validate_only=False)
    assert [each.error_code for each in answer.responses] == [E.invalid_request] * 2
    assert (await admin.settings("t"))["retention.ms"].value == "1000"


async def test_validation_changes_nothing(admin) -> None:
    row = await admin.change("t", ("retention.ms", SET, "5"), validate_only=True)
    assert row.error_code is E.none
    assert (await admin.settings("t"))["retention.ms"].value == "1000"
    row = await admin.change("t", ("onelog.engine", SET, "memory"), validate_only=True)
    assert row.error_code is E.invalid_config


@pytest.mark.parametrize(
    ("kind", "name", "key", "code"),
    [
        (TOPIC, "nobody", "retention.ms", E.unknown_topic_or_partition),
        (BROKER, "0", "log.retention.ms", E.invalid_request),
        (BROKER, "0", "nope", E.invalid_request),
        (BROKER, "7", "log.retention.ms", E.invalid_request),
        (16, "t", "retention.ms", E.invalid_request),
    ],
)
async def test_what_is_no_topic_of_ours_does_not_change(admin, kind, name, key, code) -> None:
    row = await admin.change(name, (key, SET, "5"), kind=kind)
    assert row.error_code is code
    assert row.error_message


async def test_who_may_not_configure_or_delete_a_topic_does_not(tmp_path) -> None:
    authorizer = Denies(Action.CONFIGURE, "none yet")
    async with desk(tmp_path, authorizer=authorizer) as admin:
        await admin.create("t", 1)
        authorizer._denied = (Action.CONFIGURE, "t")
        row = await admin.change("t", ("retention.ms", SET, "5"))
        assert row.error_code is E.topic_authorization_failed
        authorizer._denied = (Action.DELETE, "t")
        assert await admin.delete("t") == [E.topic_authorization_failed]
