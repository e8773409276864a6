"""Committed offsets: transactions, retention, deleted topics and bounds, on a real broker."""

from __future__ import annotations

import asyncio
import struct

import pytest

from onelog.base.clock import ManualClock
from onelog.broker import StreamConfig
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.groups.answers import Leaving
from onelog.protocols.kafka.groups.offsets import GroupOffsets
from onelog.protocols.kafka.groups.subscription import subscribed_topics
from tests.support.kafka_groups import Rig, grouping

E = ErrorCode
DAY_S = 24 * 3600
PRODUCER = 7


def at(offset: int, *places: tuple[str, int]):
    return dict.fromkeys(places or [("t", 0)], (offset, -1, ""))


def standing(rig: Rig, group: str = "g") -> dict[tuple[str, int], int]:
    offsets = rig.groups.offsets.find(group)
    return {} if offsets is None else {place: row.offset for place, row in offsets.places()}


def unstable(rig: Rig, topic: str = "t", partition: int = 0) -> bool:
    offsets = rig.groups.offsets.find("g")
    return offsets is not None and offsets.is_unstable(topic, partition)


def subscription(*topics: str) -> bytes:
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


async def test_a_commit_is_seen_once_it_is_durable(tmp_path):
    async with grouping(tmp_path) as rig:
        commit = rig.groups.offsets.commit("g", at(5))
        assert standing(rig) == {}
        await commit
        assert standing(rig) == {("t", 0): 5}


async def test_the_last_of_many_commits_counts(tmp_path):
    async with grouping(tmp_path) as rig:
        await asyncio.gather(*(rig.groups.offsets.commit("g", at(n)) for n in range(50)))
        assert standing(rig) == {("t", 0): 49}
    async with grouping(tmp_path) as rig:
        assert standing(rig) == {("t", 0): 49}


# -- transactions


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("committed", [False, True])
async def test_pending_offsets_move_with_the_end_of_their_transaction(tmp_path, restart, committed):
    async with grouping(tmp_path) as rig:
        offsets = rig.groups.offsets
        await offsets.commit("g", at(1))
        await offsets.stage("g", PRODUCER, 0, at(9, ("t", 0), ("t", 1)))
        assert standing(rig) == {("t", 0): 1}
        assert unstable(rig)
        assert unstable(rig, "t", 1)
        assert not unstable(rig, "t", 2)
        if not restart:
            await offsets.complete("g", PRODUCER, committed)
    async with grouping(tmp_path) as rig:
        if restart:
            assert unstable(rig)
            assert standing(rig) == {("t", 0): 1}
            await rig.groups.offsets.complete("g", PRODUCER, committed)
        expected = {("t", 0): 9, ("t", 1): 9} if committed else {("t", 0): 1}
        assert standing(rig) == expected
        assert not unstable(rig)
        assert rig.groups.offsets.total == len(expected)


async def test_the_end_of_a_transaction_may_be_told_again(tmp_path):
    async with grouping(tmp_path) as rig:
        offsets = rig.groups.offsets
        await offsets.stage("g", PRODUCER, 0, at(9))
        twice = offsets.complete("g", PRODUCER, True), offsets.complete("g", PRODUCER, True)
        await asyncio.gather(*twice)
        await offsets.complete("g", PRODUCER, True)
        await offsets.complete("unknown", PRODUCER, True)
        assert standing(rig) == {("t", 0): 9}
        assert offsets.total == 1


async def test_a_transaction_that_ends_before_its_offsets_are_durable(tmp_path):
    async with grouping(tmp_path) as rig:
        offsets = rig.groups.offsets
        await asyncio.gather(
            offsets.stage("g", PRODUCER, 0, at(9)), offsets.complete("g", PRODUCER, True)
        )
        assert standing(rig) == {("t", 0): 9}
    async with grouping(tmp_path) as rig:
        assert standing(rig) == {("t", 0): 9}
        assert not unstable(rig)


@pytest.mark.parametrize("waits", [False, True])
async def test_a_commit_after_the_transactions_own_is_not_undone_by_its_end(tmp_path, waits):
    async with grouping(tmp_path) as rig:
        offsets = rig.groups.offsets
        await offsets.stage("g", PRODUCER, 0, at(5))
        later = offsets.commit("g", at(8))
        if waits:
            await later
        await offsets.complete("g", PRODUCER, True)
        await later
        assert standing(rig) == {("t", 0): 8}
    async with grouping(tmp_path) as rig:
        assert standing(rig) == {("t", 0): 8}


async def test_transactions_of_two_producers_do_not_mix(tmp_path):
    async with grouping(tmp_path) as rig:
        offsets = rig.groups.offsets
        await offsets.stage("g", 1, 0, at(5))
        await offsets.stage("g", 2, 0, at(6, ("t", 1)))
        await offsets.complete("g", 1, False)
        assert not unstable(rig)
        assert unstable(rig, "t", 1)
        await offsets.complete("g", 2, True)
        assert standing(rig) == {("t", 1): 6}


# -- retention


async def test_offsets_of_a_group_without_members_are_kept_for_the_retention(tmp_path):
    clock = ManualClock()
    async with grouping(tmp_path, clock) as rig:
        first = await rig.member()
        await rig.groups.offsets.commit("g", at(5))
        for _ in range(8):  # the members stay longer than the retention
            for _ in range(DAY_S // 9):
                rig.timers.advance(9)
                rig.groups.heartbeat("g", first.member_id, None, 1)
            await rig.settled()
        assert standing(rig) == {("t", 0): 5}
        rig.groups.leave("g", [Leaving(member_id=first.member_id, instance_id=None)])
        rig.timers.advance(7 * DAY_S - 601)
        await rig.settled()
        assert standing(rig) == {("t", 0): 5}
    async with grouping(tmp_path, clock) as rig:  # the time counts on over a restart
        rig.timers.advance(1201)
        await rig.settled()
        rig.timers.advance(600)
        await rig.settled()
        assert standing(rig) == {}
        assert rig.groups.find("g") is None


async def test_offsets_that_never_had_members_expire_from_the_commit(tmp_path):
    async with grouping(tmp_path) as rig:
        await rig.groups.offsets.commit("g", at(5))
        rig.timers.advance(6 * DAY_S)
        await rig.groups.offsets.commit("g", at(6, ("t", 1)))
        rig.timers.advance(DAY_S)
        await rig.settled()
        rig.timers.advance(600)
        await rig.settled()
        assert standing(rig) == {("t", 1): 6}


async def test_a_client_may_choose_when_its_offsets_expire(tmp_path):
    clock = ManualClock()
    async with grouping(tmp_path, clock) as rig:
        await rig.groups.offsets.commit("g", at(5), expires_ms=clock.now_ms() + 700_000)
        rig.timers.advance(600)
        await rig.settled()
        assert standing(rig) == {("t", 0): 5}
        rig.timers.advance(600)
        await rig.settled()
        assert standing(rig) == {}


async def test_topics_that_no_member_reads_any_more_expire(tmp_path):
    async with grouping(tmp_path) as rig:
        metadata = (("range", subscription("read")),)
        await rig.member(protocols=metadata, session_timeout_ms=1_800_000)
        await rig.groups.offsets.commit("g", at(5, ("read", 0), ("left", 0)))
        group = rig.groups.find("g")
        assert subscribed_topics(group) == {"read"}
        rig.timers.clock.advance(7 * DAY_S)
        rig.groups.offsets.expire(group)
        await rig.settled()
        assert standing(rig) == {("read", 0): 5}


async def test_what_a_transaction_may_still_move_does_not_expire(tmp_path):
    async with grouping(tmp_path) as rig:
        await rig.groups.offsets.commit("g", at(5))
        await rig.groups.offsets.stage("g", PRODUCER, 0, at(6))
        rig.timers.clock.advance(8 * DAY_S)
        rig.groups.offsets.expire(rig.groups.find("g"))
        await rig.settled()
        assert standing(rig) == {("t", 0): 5}


@pytest.mark.parametrize(
    "metadata", [b"", b"\0", subscription("topic")[:-8], struct.pack(">hi", 0, 2**31 - 1)]
)
async def test_a_subscription_that_cannot_be_read_says_nothing(tmp_path, metadata):
    async with grouping(tmp_path) as rig:
        await rig.member(protocols=(("range", metadata),))
        assert subscribed_topics(rig.groups.find("g")) is None


# -- deletion


async def test_offsets_are_deleted_one_by_one(tmp_path):
    async with grouping(tmp_path) as rig:
        await rig.groups.offsets.commit("g", at(5, ("t", 0), ("t", 1)))
        await rig.groups.offsets.delete("g", [("t", 0), ("t", 9)])
        assert standing(rig) == {("t", 1): 5}
    async with grouping(tmp_path) as rig:
        assert standing(rig) == {("t", 1): 5}
        assert rig.groups.offsets.total == 1


async def test_the_offsets_of_a_deleted_topic_go_with_it(tmp_path):
    async with grouping(tmp_path) as rig:
        for name in ("orders", "others"):
            await rig.broker.streams.create(StreamConfig(name=name, captures=(name,)))
        await rig.groups.offsets.commit("g", at(5, ("orders", 0), ("others", 0)))
        late = rig.groups.offsets.commit("h", at(6, ("orders", 1)))
        await rig.broker.streams.delete("orders")
        await late
        await rig.settled()
        assert standing(rig) == {("others", 0): 5}
        assert standing(rig, "h") == {}
    async with grouping(tmp_path) as rig:
        assert standing(rig) == {("others", 0): 5}
        assert standing(rig, "h") == {}


# -- bounds


async def test_the_offsets_of_a_group_are_bounded(tmp_path):
    async with grouping(tmp_path, offsets_per_group=2) as rig:
        await rig.groups.offsets.commit("g", at(5, ("t", 0), ("t", 1)))
        await rig.groups.offsets.commit("g", at(6, ("t", 0)))
        for call in (
            lambda: rig.groups.offsets.commit("g", at(5, ("t", 2))),
            lambda: rig.groups.offsets.stage("g", PRODUCER, 0, at(5, ("t", 2))),
        ):
            with pytest.raises(KafkaError) as refused:
                call()
            assert refused.value.code is E.invalid_commit_offset_size


async def test_the_offsets_of_all_groups_are_bounded_with_those_on_their_way(tmp_path):
    async with grouping(tmp_path, offsets=2) as rig:
        commits = [rig.groups.offsets.commit(name, at(5)) for name in ("a", "b")]
        with pytest.raises(KafkaError):
            rig.groups.offsets.commit("c", at(5))
        await asyncio.gather(*commits)
        with pytest.raises(KafkaError):
            rig.groups.offsets.commit("c", at(5))
        await rig.groups.offsets.delete("a", [("t", 0)])
        await rig.groups.offsets.commit("c", at(5))
        assert rig.groups.offsets.total == 2


def test_a_group_without_offsets_is_nothing():
    assert not GroupOffsets("g")
