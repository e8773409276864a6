"""Internal streams with several partitions: what belongs to one name lies in one of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import ConfigError
from onelog.broker import EARLIEST, LOCAL, Broker, BrokerSettings, KeptTable
from onelog.kernel import scan_batches, topic_hash
from onelog.log.internal import mixed_hash
from onelog.metadata.local import LocalStore
from onelog.protocols.kafka.groups import rows as group_rows
from onelog.protocols.kafka.transactions import links
from tests.logs import pairs
from tests.support.brokers import FAST, running, say

FOUR = msgspec.structs.replace(FAST, internal_partitions=4)


def keys_of(broker: Broker, stream: str) -> list[set[bytes | None]]:
    """The keys that each partition holds."""
    return [
        {key for key, _value in pairs(partition.log)}
        for partition in broker.streams.get(stream).partitions
    ]


async def test_rows_of_a_key_lie_in_one_partition_over_restarts(tmp_path: Path) -> None:
    rows = [(b"key-%d" % number, b"1") for number in range(50)]
    async with running(tmp_path, FOUR) as broker:
        table = await broker.open_kept("~things")
        await table.put(rows)
        first = keys_of(broker, "~things")
        assert all(first), "each partition has some of them"
    async with running(tmp_path, FOUR) as broker:
        table = await broker.open_kept("~things")
        assert dict(table.rows()) == dict(rows)
        await table.put([(key, None) for key, _value in rows[:10]])
        await table.put([(key, b"2") for key, _value in rows[10:]])
        assert keys_of(broker, "~things") == first
    async with running(tmp_path, FOUR) as broker:
        table = await broker.open_kept("~things")
        assert dict(table.rows()) == {key: b"2" for key, _value in rows[10:]}


async def test_rows_of_one_name_that_are_put_together_are_one_batch(tmp_path: Path) -> None:
    """All of them or none: also of a group's rows, and of what is linked for a query."""
    group = [
        group_rows.group_key("g"),
        group_rows.committed_key("g", "t", 0),
        group_rows.committed_key("g", "u", 3),
        group_rows.pending_key("g", 7, "t", 0),
    ]
    query = [links.key_of("q"), b"~link/q/1/task-1", b"~link/q/1/task-2", b"~link/q/2/task-9"]
    async with running(tmp_path, FOUR) as broker:
        for keys, name_of in ((group, group_rows.name_of), (query, links.name_of)):
            stream = f"~{len(keys)}-{name_of.__module__.rpartition('.')[2]}"
            table = await KeptTable.open(broker.streams, broker._clock, stream, name_of)
            await table.put([(key, b"1") for key in keys])
            counts = [
                info.count
                for partition in broker.streams.get(stream).partitions
                for info in scan_batches(partition.read(partition.start_offset, 1 << 20))
            ]
            assert counts == [len(keys)]
    assert links.name_of(b"plain-id") == b"plain-id"
    assert links.name_of(b"~link/no-member") == b"~link/no-member"


async def test_cursors_are_found_again_in_their_partitions(tmp_path: Path) -> None:
    names = [f"cursor-{number}" for number in range(20)]
    async with running(tmp_path, FOUR) as broker:
        await say(broker, "t", "1", "2")
        for name in names:
            cursor = await broker.cursors.open_session(name, ["t"], start=EARLIEST, principal=LOCAL)
            assert len(cursor.fetch()) == 2
        await broker.cursors.save(*broker.cursors.open_cursors())
        states = [broker.cursors.kept(name) for name in names]
        assert all(keys_of(broker, "~cursors")), "each partition has some of them"
    async with running(tmp_path, FOUR) as broker:
        assert [broker.cursors.kept(name) for name in names] == states
        assert all(states)
        for name in names:
            await broker.cursors.delete(name)
    async with running(tmp_path, FOUR) as broker:
        assert broker.cursors.names() == []


@pytest.mark.parametrize(("made", "wanted"), [(FAST, FOUR), (FOUR, FAST)])
async def test_a_data_directory_keeps_the_number_that_it_was_made_with(
    tmp_path: Path, made: BrokerSettings, wanted: BrokerSettings
) -> None:
    """I9: with another number no name would be found where it lies."""
    async with running(tmp_path, made):
        pass
    with pytest.raises(ConfigError, match=r"internal\.partitions .* cannot change"):
        async with running(tmp_path, wanted):
            pass
    async with running(tmp_path, made):
        pass


async def test_a_data_directory_of_a_version_without_the_number_has_one(tmp_path: Path) -> None:
    async with running(tmp_path, FAST):
        pass
    store = await LocalStore.open(tmp_path / "metadata.db", ManualClock())
    await store.delete("internal/partitions")
    await store.close()
    with pytest.raises(ConfigError, match="was made with 1"):
        async with running(tmp_path, FOUR):
            pass
    async with running(tmp_path, FAST):
        pass


async def test_names_that_are_much_alike_are_spread_over_all_partitions() -> None:
    for shape in ("cursor-%d", "q%d", "session/%d", "amqp:/:jobs.%d", "share/g/%d/#", "group_%03d"):
        for partitions in (2, 4, 8, 16, 3):
            names = [(shape % number).encode() for number in range(16 * partitions)]
            counts = Counter(mixed_hash(name) % partitions for name in names)
            assert len(counts) == partitions, (shape, partitions)
            assert max(counts.values()) <= 2.5 * 16, (shape, partitions, counts)


async def test_a_data_directory_from_before_the_mixed_hash_finds_its_names(tmp_path: Path) -> None:
    """Its row has the number alone: its names lie where the topic's hash put them."""
    rows = [(b"key-%d" % number, b"1") for number in range(20)]
    store = await LocalStore.open(tmp_path / "metadata.db", ManualClock())
    await store.put("internal/partitions", b"4")
    await store.close()
    async with running(tmp_path, FOUR) as broker:
        table = await broker.open_kept("~things")
        await table.put(rows)
        assert [
            {number for number, keys in enumerate(keys_of(broker, "~things")) if key in keys}
            for key, _value in rows
        ] == [{topic_hash(key) % 4} for key, _value in rows]
