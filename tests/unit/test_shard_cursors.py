"""Cursors and sessions of a shard: known while this node owns it, and read anew afterwards."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import NotLeader, NotOwner, StateLoading
from onelog.broker import EARLIEST, LOCAL, Broker, OffsetCursor, Session
from onelog.broker.kept import KeptTable
from onelog.broker.sessions import NEVER_MS
from onelog.broker.sessions import STREAM as SESSIONS
from onelog.cursors.owners import owner_of
from onelog.protocols.mqtt.session_state import cursor_name
from tests.support.brokers import read_all, running, say, spoken
from tests.support.elections import (
    ELECTED,
    as_other_owner,
    depose,
    elected,
    lose,
    name_in,
    parts_of,
    win,
)


async def open_offset(broker: Broker, name: str) -> OffsetCursor:
    return await broker.cursors.open_offset(name, ["t"], start=EARLIEST, principal=LOCAL)


async def attach(broker: Broker, client_id: str, said: list[str] | None = None) -> Session:
    async def taken_over() -> None:
        if said is not None:
            said.append(client_id)

    return await broker.sessions.attach(
        client_id,
        protocol="test",
        owner="ann",
        expiry_ms=NEVER_MS,
        clean=False,
        on_takeover=taken_over,
    )


async def rows_of(broker: Broker, shard: int) -> list[tuple[int, int]]:
    """Where the partitions of a shard end."""
    return [(int(row.start_offset), int(row.end_offset)) for row in parts_of(broker, shard)]


# -- cursors


async def test_a_cursor_of_another_shard_is_refused_and_never_new(tmp_path: Path) -> None:
    """I9."""
    async with elected(tmp_path, 1) as broker:
        await open_offset(broker, name_in(broker, 1))
        with pytest.raises(NotOwner):
            await open_offset(broker, name_in(broker, 2))
        with pytest.raises(NotOwner):
            broker.cursors.kept(name_in(broker, 2))
        # A cursor without kept state has no owner.
        await broker.cursors.open_offset(name_in(broker, 2), ["t"], durable=False, principal=LOCAL)


async def test_a_lost_shard_closes_its_cursors_and_a_later_election_reads_them_again(
    tmp_path: Path,
) -> None:
    async with elected(tmp_path, 1, 2) as broker:
        await say(broker, "t", "a", "b")
        ours, other = name_in(broker, 1), name_in(broker, 2)
        cursor, staying = await open_offset(broker, ours), await open_offset(broker, other)
        await broker.cursors.save(cursor, staying)
        before = await rows_of(broker, 2)
        await lose(broker, 1)
        assert broker.cursors.find(ours) is None
        assert broker.cursors.find(other) is staying
        with pytest.raises(NotOwner):
            await broker.cursors.save(cursor)
        await win(broker, 1)
        again = await open_offset(broker, ours)
        assert spoken(read_all(again))[-1] == "t=b"
        assert await rows_of(broker, 2) == before


async def test_marked_cursors_of_a_lost_shard_are_not_written_and_hinder_no_others(
    tmp_path: Path,
) -> None:
    settings = msgspec.structs.replace(ELECTED, checkpoint_interval_s=0.01)
    async with running(tmp_path, settings) as broker:
        await broker.shards.lead(1)
        await broker.shards.lead(2)
        await say(broker, "t", "a")
        lost = await open_offset(broker, name_in(broker, 1))
        kept = await open_offset(broker, name_in(broker, 2))
        ends = await rows_of(broker, 1)
        depose(broker, 1)
        for cursor in (lost, kept):
            cursor.on_change()
        ours = broker.streams.get("~cursors").partitions[2]
        await asyncio.wait_for(ours.wait_visible(ours.end_offset), 5)
        await broker.shards.lose(1)
        assert await rows_of(broker, 1) == ends
        assert not [row for row in broker.troubles.rows() if row.kind == "cursor-checkpoint"]


async def test_pins_are_those_of_the_shards_that_this_node_owns(tmp_path: Path) -> None:
    async with elected(tmp_path, 1, 2) as broker:
        await say(broker, "t", "a")
        for shard in (1, 2):
            await broker.cursors.open_queue(
                name_in(broker, shard), ["t"], start=EARLIEST, principal=LOCAL
            )
        stream = broker.streams.get("main").record.id
        assert {key[0] for key in broker.cursors.pins.lowest()} == {stream}
        await lose(broker, 1)
        assert broker.cursors.pins.lowest()
        await lose(broker, 2)
        assert not broker.cursors.pins.lowest()


def test_the_cursor_of_a_session_lies_with_its_client_and_all_queues_in_shard_0() -> None:
    assert owner_of(cursor_name("device-1")) == b"device-1"
    assert owner_of("amqp:/:q") == owner_of("amqp-transient:/:q") == b""
    assert owner_of("share/g/a/#") == b"g/a/#"
    assert owner_of("own") == b"own"


async def test_a_state_that_an_earlier_owner_kept_counts_after_the_election(
    tmp_path: Path,
) -> None:
    async with elected(tmp_path, 1) as broker:
        name = name_in(broker, 1)
        cursor = await open_offset(broker, name)
        await broker.cursors.close_cursor(cursor)
        row = msgspec.msgpack.encode(
            msgspec.structs.replace(cursor.state(), filters=("elsewhere",))
        )
        await lose(broker, 1)
        table = await KeptTable.make(broker.streams, ManualClock(), "~cursors")
        with as_other_owner(broker, 1):
            await table.put([(name.encode(), row)])
        await win(broker, 1)
        kept = broker.cursors.kept(name)
        assert kept is not None and kept.filters == ("elsewhere",)


# -- sessions


async def test_a_session_of_another_shard_is_refused(tmp_path: Path) -> None:
    async with elected(tmp_path, 0) as broker:
        await attach(broker, name_in(broker, 0))
        with pytest.raises(NotOwner):
            await attach(broker, name_in(broker, 3))
        with pytest.raises(NotOwner):
            await broker.sessions.end(name_in(broker, 3))


async def test_a_lost_shard_lets_its_sessions_go_and_writes_nothing(tmp_path: Path) -> None:
    async with elected(tmp_path, 0, 3) as broker:
        said: list[str] = []
        gone, stays = name_in(broker, 0), name_in(broker, 3)
        session = await attach(broker, gone, said)
        await attach(broker, stays, said)
        ends = await rows_of(broker, 0)
        await lose(broker, 0)
        assert said == [gone]
        assert broker.sessions.get(gone) is None and broker.sessions.get(stays) is not None
        await broker.sessions.detach(session)  # too late: nobody listens
        assert await rows_of(broker, 0) == ends
        await win(broker, 0)
        record = broker.sessions.get(gone)
        assert record is not None and record.detached_at_ms is not None
        assert (await attach(broker, gone)).resumed


async def test_rows_of_the_next_owner_count_when_the_shard_comes_back(tmp_path: Path) -> None:
    async with elected(tmp_path, 0) as broker:
        name, other = name_in(broker, 0), name_in(broker, 0, nth=1)
        await attach(broker, name)
        await attach(broker, other)
        await lose(broker, 0)
        table = await KeptTable.make(broker.streams, ManualClock(), SESSIONS)
        with as_other_owner(broker, 0):
            await table.put([(name.encode(), None)])
        await win(broker, 0)
        assert broker.sessions.get(name) is None
        assert broker.sessions.get(other) is not None


async def test_a_deposed_owner_is_refused_by_its_partition_and_sees_no_damage(
    tmp_path: Path,
) -> None:
    async with elected(tmp_path, 0) as broker:
        name = name_in(broker, 0)
        session = await attach(broker, name)
        depose(broker, 0)
        with pytest.raises(NotLeader):
            await broker.sessions.update(session, session.record)
        assert not broker.troubles.standing()


async def test_a_takeover_that_waits_for_its_turn_finds_that_the_shard_is_lost(
    tmp_path: Path,
) -> None:
    async with elected(tmp_path, 0) as broker:
        name = name_in(broker, 0)
        slow = asyncio.Event()

        async def taken_over() -> None:
            await slow.wait()

        await broker.sessions.attach(
            name,
            protocol="test",
            owner="ann",
            expiry_ms=NEVER_MS,
            clean=False,
            on_takeover=taken_over,
        )
        second = asyncio.create_task(attach(broker, name))
        await asyncio.sleep(0)
        third = asyncio.create_task(attach(broker, name))
        await asyncio.sleep(0)
        await lose(broker, 0)
        slow.set()
        with pytest.raises(NotOwner):
            await second
        with pytest.raises((NotOwner, StateLoading)):
            await third
        assert broker.sessions.get(name) is None


async def test_a_node_on_its_own_with_several_shards_owns_all_of_them(tmp_path: Path) -> None:
    settings = msgspec.structs.replace(ELECTED, elected=False)
    async with running(tmp_path, settings) as broker:
        for shard in range(len(broker.shards)):
            await attach(broker, name_in(broker, shard))
            await open_offset(broker, name_in(broker, shard))
    async with running(tmp_path, settings) as broker:
        assert broker.shards.owned == set(range(4))
        for shard in range(len(broker.shards)):
            assert broker.sessions.get(name_in(broker, shard)) is not None
            assert broker.cursors.kept(name_in(broker, shard)) is not None
