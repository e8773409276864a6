"""Groups of a node that owns some shards: taken on election, dropped on loss, never half of it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import NotOwner, StateLoading, Unavailable
from onelog.config.kafka import KafkaGroups
from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.groups.coordinator import Groups
from onelog.protocols.kafka.groups.rows import STREAM, GroupOffset, committed_key, encode_committed
from onelog.protocols.kafka.groups.states import State
from tests.support.elections import (
    ELECTED,
    as_other_owner,
    depose,
    elected,
    lose,
    name_in,
    win,
)
from tests.support.kafka_admin import Desk, desk
from tests.support.kafka_groups import Rig, Timers

E, K = ErrorCode, ApiKey
MINE, OTHER = 1, 2


@contextlib.asynccontextmanager
async def node(path: Path, *led: int) -> AsyncIterator[Rig]:
    clock = ManualClock()
    timers = Timers(clock)
    async with elected(path, *led, clock=clock) as broker:
        groups = await Groups.open(broker, KafkaGroups(), clock, timers.call_at)
        try:
            yield Rig(broker, groups, timers)
        finally:
            await groups.close()


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with node(tmp_path, MINE, OTHER) as made:
        yield made


def name(rig: Rig, shard: int = MINE, nth: int = 0) -> str:
    return name_in(rig.broker, shard, "g", nth)


async def commit(rig: Rig, group: str, offset: int) -> None:
    await rig.groups.offsets.commit(group, {("t", 0): (offset, -1, "")})


def committed(rig: Rig, group: str) -> int | None:
    offsets = rig.groups.offsets.find(group)
    found = None if offsets is None else offsets.find("t", 0)
    return None if found is None else found.offset


def calls(rig: Rig, group: str) -> dict[str, Any]:
    groups = rig.groups
    return {
        "heartbeat": lambda: groups.heartbeat(group, "m", None, 1),
        "leave": lambda: groups.leave(group, []),
        "commit": lambda: groups.check_commit(group, "", None, -1),
        "delete": lambda: groups.delete(group),
        "look": lambda: groups.check(group),
    }


async def test_a_group_of_another_node_is_not_coordinated_here(rig: Rig) -> None:
    group = name(rig, 3)
    for what, call in calls(rig, group).items():
        with pytest.raises(NotOwner):
            call()
            pytest.fail(what)
    with pytest.raises(NotOwner):
        await rig.join(group)
    assert not len(rig.groups)


async def test_a_coordinator_that_may_have_been_deposed_answers_nothing(rig: Rig) -> None:
    group = name(rig)
    first = await rig.joined(group)
    rig.broker.shards.is_fresh = lambda _shard: False
    for what, call in calls(rig, group).items():
        with pytest.raises(NotOwner):  # NOT_COORDINATOR
            call()
            pytest.fail(what)
    with pytest.raises(NotOwner):
        await rig.join(group)
    rig.broker.shards.is_fresh = lambda _shard: True
    assert rig.groups.find(group) is not None, "it was the owner after all"
    assert rig.groups.heartbeat(group, first.member_id, None, first.generation) is E.none


async def test_all_that_wait_hear_of_the_loss_of_their_coordinator_and_others_go_on(
    rig: Rig,
) -> None:
    joining, syncing, other = name(rig), name(rig, nth=1), name(rig, OTHER)
    kept = await rig.member(other)
    first = await rig.joined(syncing)
    second_join = asyncio.ensure_future(rig.join(syncing))
    await asyncio.sleep(0)
    again = asyncio.ensure_future(rig.join(syncing, first.member_id))
    second = await second_join
    first = await again
    follower = second if second.leader != second.member_id else first
    sync = asyncio.ensure_future(rig.sync(follower, syncing))
    join = asyncio.ensure_future(rig.join(joining))
    await asyncio.sleep(0)
    await lose(rig.broker, MINE)
    assert (await join).error is E.not_coordinator
    assert (await sync).error is E.not_coordinator
    assert [group.name for group in rig.groups.listed()] == [other]
    assert rig.groups.heartbeat(other, kept.member_id, None, kept.generation) is E.none
    rig.timers.advance(3600)  # no timer of a lost group does anything
    with pytest.raises(NotOwner):
        rig.groups.heartbeat(syncing, first.member_id, None, first.generation)


async def test_members_and_offsets_go_on_with_the_next_owner(rig: Rig) -> None:
    group = name(rig)
    answer = await rig.member(group)
    await commit(rig, group, 7)
    await lose(rig.broker, MINE)
    assert not len(rig.groups)
    assert not rig.groups.offsets.total
    assert not rig.groups._size_bytes
    await win(rig.broker, MINE)
    assert rig.groups.heartbeat(group, answer.member_id, None, answer.generation) is E.none
    assert committed(rig, group) == 7
    rig.timers.advance(11)  # a whole session from the election on, then it is over
    found = rig.groups.find(group)
    assert found is not None
    assert found.state is State.EMPTY


async def test_an_owner_knows_the_offsets_that_another_one_committed_meanwhile(rig: Rig) -> None:
    group = name(rig)
    await commit(rig, group, 1)
    rows = rig.broker.streams.get(STREAM).partitions[MINE]
    before = rows.end_offset
    await lose(rig.broker, MINE)
    with as_other_owner(rig.broker, MINE):
        await rig.groups._table.put(row_of(group, 5))
    await win(rig.broker, MINE)
    assert committed(rig, group) == 5
    assert rows.end_offset == before + 1


def row_of(group: str, offset: int) -> list[tuple[bytes, bytes | None]]:
    return [(committed_key(group, "t", 0), encode_committed(GroupOffset(offset, -1, "", 0, 9)))]


async def test_nothing_is_written_after_the_loss_not_even_what_was_begun_before(
    rig: Rig,
) -> None:
    group, other = name(rig), name(rig, OTHER)
    rows = rig.broker.streams.get(STREAM).partitions[MINE]
    mine = asyncio.ensure_future(commit(rig, group, 1))
    theirs = asyncio.ensure_future(commit(rig, other, 2))
    gone = rig.groups.delete(name(rig, nth=2))
    await gone
    before = rows.end_offset
    late = rig.groups.offsets.commit(group, {("t", 0): (3, -1, "")})
    depose(rig.broker, MINE)  # what the pass collected is refused, and only for this shard
    with pytest.raises(KafkaError) as refused:
        await late
    assert refused.value.code is E.not_coordinator
    await theirs
    await asyncio.wait([mine])
    assert rows.end_offset == before
    await rig.broker.shards.lose(MINE)
    assert committed(rig, other) == 2


async def test_a_member_whose_assignments_cannot_be_kept_any_more_hears_not_coordinator(
    rig: Rig,
) -> None:
    group = name(rig)
    answer = await rig.joined(group)
    depose(rig.broker, MINE)  # the services have not heard of it
    assert (await rig.sync(answer, group)).error is E.not_coordinator


async def test_a_deletion_that_is_not_written_any_more_brings_no_group_back(rig: Rig) -> None:
    group = name(rig)
    await commit(rig, group, 1)
    deleting = rig.groups.delete(group)
    await lose(rig.broker, MINE)
    assert await deleting is E.not_coordinator
    assert not len(rig.groups)
    await win(rig.broker, MINE)
    assert committed(rig, group) == 1


async def test_groups_are_loading_until_all_rows_are_read(rig: Rig) -> None:
    group = name(rig, 3)
    assert rig.groups.unlisted is None
    task = asyncio.ensure_future(win(rig.broker, 3))
    await asyncio.sleep(0)
    assert isinstance(rig.groups.unlisted, StateLoading)
    with pytest.raises(StateLoading):
        rig.groups.heartbeat(group, "m", None, 1)
    await task
    assert rig.groups.unlisted is None
    assert rig.groups.heartbeat(group, "m", None, 1) is E.unknown_member_id


async def test_groups_that_another_node_may_own_by_now_are_not_listed_as_ours(rig: Rig) -> None:
    rig.broker.shards.is_fresh = lambda _shard: False
    assert type(rig.groups.unlisted) is Unavailable


# -- what clients read


@pytest.fixture
async def admin(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path, settings=ELECTED) as made:
        await made.broker.shards.lead(MINE)
        await made.create("t", 1)
        yield made


async def test_each_request_for_a_group_of_another_node_is_answered_not_coordinator(
    admin: Desk,
) -> None:
    far, near = name_in(admin.broker, OTHER, "g"), name_in(admin.broker, MINE, "g")
    none = {"group_instance_id": None}
    offset = {"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}
    topics = [{"name": "t", "partitions": [{**offset, "committed_leader_epoch": -1}]}]
    for group, code in ((far, E.not_coordinator), (near, E.none)):
        body: dict[str, Any] = {"group_id": group, "generation_id_or_member_epoch": -1, **none}
        told = await admin.ask(K.OFFSET_COMMIT, 8, member_id="", topics=topics, **body)
        assert told.topics[0].partitions[0].error_code is code
        asked = {"group_id": group, "topics": None, "member_id": None, "member_epoch": -1}
        told = await admin.ask(K.OFFSET_FETCH, 8, groups=[asked], require_stable=False)
        assert told.groups[0].error_code is code
        told = await admin.ask(K.DESCRIBE_GROUPS, 5, groups=[group])
        assert told.groups[0].error_code is code
    with pytest.raises(NotOwner):  # the connection turns it into the answer of this API
        await admin.ask(K.OFFSET_FETCH, 5, group_id=far, topics=None)
    listed = await admin.ask(K.LIST_GROUPS, 4)
    assert [row.group_id for row in listed.groups] == [near]
    told = await admin.ask(K.DELETE_GROUPS, groups_names=[far, near])
    assert [row.error_code for row in told.results] == [E.not_coordinator, E.none]


async def test_a_node_that_may_have_been_deposed_does_not_name_itself_as_coordinator(
    admin: Desk,
) -> None:
    keys = {"key_type": 0, "coordinator_keys": [name_in(admin.broker, MINE, "g")]}
    told = await admin.ask(K.FIND_COORDINATOR, 4, **keys)
    assert told.coordinators[0].error_code is E.none
    admin.broker.shards.is_fresh = lambda _shard: False
    told = await admin.ask(K.FIND_COORDINATOR, 4, **keys)
    assert told.coordinators[0].error_code is E.coordinator_not_available
