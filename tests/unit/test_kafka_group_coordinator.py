"""The rim of groups: timers, kept rows, restarts, deletion and bounds, on a real broker."""

from __future__ import annotations

import asyncio

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import StateUnknown, StorageFull
from onelog.broker.kept import KeptTable
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.groups.answers import Leaving
from onelog.protocols.kafka.groups.journal import BATCH_BYTES, Journal
from onelog.protocols.kafka.groups.rows import STREAM
from onelog.protocols.kafka.groups.states import State
from tests.support.brokers import batches_of, running
from tests.support.kafka_groups import Rig, grouping

E = ErrorCode


def beat(rig: Rig, answer, group="g"):
    return rig.groups.heartbeat(group, answer.member_id, None, answer.generation)


def leave(rig: Rig, answer, group="g"):
    (error,) = rig.groups.leave(group, [Leaving(member_id=answer.member_id, instance_id=None)])
    return error


async def test_a_member_joins_syncs_beats_and_leaves(tmp_path):
    async with grouping(tmp_path) as rig:
        first = await rig.joined()
        assert first.leader == first.member_id
        assert (await rig.sync(first)).assignment == b"part"
        assert beat(rig, first) is E.none
        assert leave(rig, first) is E.none
        assert rig.groups.find("g").state is State.EMPTY


async def test_heartbeats_do_not_touch_the_timer(tmp_path):
    async with grouping(tmp_path) as rig:
        first = await rig.member()
        before = rig.timers.waiting
        for _ in range(100):
            beat(rig, first)
        assert rig.timers.waiting == before
        for _ in range(5):
            rig.timers.advance(9)
            assert beat(rig, first) is E.none
        rig.timers.advance(10)
        assert beat(rig, first) is E.unknown_member_id


async def test_members_go_on_after_a_restart(tmp_path):
    clock = ManualClock()
    async with grouping(tmp_path, clock) as rig:
        first = await rig.member()
        await rig.groups.offsets.commit("g", {("t", 0): (42, 1, "note")})
    async with grouping(tmp_path, clock) as rig:
        assert rig.groups.find("g").state is State.STABLE
        assert beat(rig, first) is E.none
        assert (await rig.sync(first)).assignment == b"part"
        found = rig.groups.offsets.find("g").find("t", 0)
        assert (found.offset, found.leader_epoch, found.metadata) == (42, 1, "note")
        rig.timers.advance(10)  # nobody is heard of again
        assert rig.groups.find("g").state is State.EMPTY
        await rig.settled()
    async with grouping(tmp_path, clock) as rig:
        assert rig.groups.find("g").state is State.EMPTY
        assert rig.groups.find("g").generation == 2


async def test_a_restart_in_the_middle_of_a_rebalance_goes_back_to_the_last_generation(tmp_path):
    async with grouping(tmp_path) as rig:
        first = await rig.member()
        waiting = asyncio.ensure_future(rig.join(client_id="other"))
        await asyncio.sleep(0)
        assert rig.groups.find("g").state is State.PREPARING
        waiting.cancel()
    async with grouping(tmp_path) as rig:
        assert beat(rig, first) is E.none
        assert len(rig.groups.find("g").members) == 1


async def test_an_assignment_is_not_answered_before_it_is_durable(tmp_path, monkeypatch):
    async with grouping(tmp_path) as rig:
        first = await rig.joined()
        held: list[asyncio.Future[None]] = []

        def hold(_self, _rows):
            held.append(asyncio.get_running_loop().create_future())
            return held[-1]

        monkeypatch.setattr(KeptTable, "put", hold)
        waiting = asyncio.ensure_future(rig.sync(first))
        for _ in range(10):
            await asyncio.sleep(0)
        assert held
        assert not waiting.done()
        held[0].set_result(None)
        assert (await waiting).error is E.none


async def test_a_full_disk_refuses_the_assignment_and_the_commit(tmp_path, monkeypatch):
    def full(_self, _rows):
        raise StorageFull("no room")

    async with grouping(tmp_path) as rig:
        first = await rig.joined()
        with monkeypatch.context() as patched:
            patched.setattr(KeptTable, "put", full)
            assert (await rig.sync(first)).error is E.coordinator_not_available
            with pytest.raises(KafkaError) as refused:
                await rig.groups.offsets.commit("h", {("t", 0): (1, -1, "")})
            assert refused.value.code is E.coordinator_not_available
            assert rig.groups.offsets.find("h") is None
            assert rig.groups.offsets.total == 0
        again = await rig.join(member_id=first.member_id)
        assert (await rig.sync(again)).error is E.none


async def test_the_answer_of_a_client_that_has_gone_harms_nobody(tmp_path):
    async with grouping(tmp_path) as rig:
        waiting = asyncio.ensure_future(rig.join())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        rig.timers.advance(1)
        assert rig.groups.find("g").state is State.COMPLETING


async def test_requests_about_a_group_that_is_not_known(tmp_path):
    async with grouping(tmp_path) as rig:
        assert (await rig.join("x", "m")).error is E.unknown_member_id
        assert rig.groups.heartbeat("x", "m", None, 1) is E.unknown_member_id
        assert rig.groups.leave("x", [Leaving(member_id="m", instance_id=None)]) == [
            E.unknown_member_id
        ]
        assert rig.groups.check_commit("x", "", None, -1) is E.none
        assert rig.groups.check_commit("x", "m", None, 1) is E.illegal_generation
        assert len(rig.groups) == 0


@pytest.mark.parametrize("timeout_ms", [5_999, 1_800_001, -1])
async def test_the_session_timeout_is_bounded(tmp_path, timeout_ms):
    async with grouping(tmp_path) as rig:
        with pytest.raises(KafkaError) as refused:
            await rig.join(session_timeout_ms=timeout_ms)
        assert refused.value.code is E.invalid_session_timeout


@pytest.mark.parametrize("name", ["", "x" * 1025])
async def test_a_group_id_is_bounded(tmp_path, name):
    async with grouping(tmp_path) as rig:
        with pytest.raises(KafkaError) as refused:
            await rig.join(name)
        assert refused.value.code is E.invalid_group_id


async def test_groups_are_bounded_and_those_without_anything_make_room(tmp_path):
    async with grouping(tmp_path, groups=2) as rig:
        for name in ("a", "b"):
            assert (await rig.join(name, needs_known_id=True)).error is E.member_id_required
        with pytest.raises(KafkaError) as refused:
            await rig.join("c", needs_known_id=True)
        assert refused.value.code is E.group_max_size_reached
        rig.timers.advance(10)  # the ids that were given out lapse
        assert len(rig.groups) == 0
        assert (await rig.join("c", needs_known_id=True)).error is E.member_id_required


async def test_the_bytes_of_members_are_bounded_one_by_one_and_in_total(tmp_path):
    async with grouping(tmp_path, member_bytes=2048, total_bytes=4096) as rig:
        with pytest.raises(KafkaError) as refused:
            await rig.join(protocols=(("range", b"x" * 2048),))
        assert refused.value.code is E.invalid_request
        first = await rig.member("a", protocols=(("range", b"x" * 2000),))
        with pytest.raises(KafkaError) as refused:
            await rig.join("b", protocols=(("range", b"x" * 2000),))
        assert refused.value.code is E.group_max_size_reached
        with pytest.raises(KafkaError) as refused:
            await rig.sync(first, "a", **{first.member_id: b"x" * 4096})
        assert refused.value.code is E.invalid_request
        leave(rig, first, "a")
        await rig.member("b", protocols=(("range", b"x" * 2000),))


# -- deletion


async def test_an_empty_group_is_deleted_with_its_offsets(tmp_path):
    async with grouping(tmp_path) as rig:
        first = await rig.member()
        await rig.groups.offsets.commit("g", {("t", 0): (1, -1, ""), ("t", 1): (2, -1, "")})
        assert await rig.groups.delete("g") is E.non_empty_group
        leave(rig, first)
        answers = {name: rig.groups.delete(name) for name in ("g", "unknown")}
        assert await answers["g"] is E.none
        assert await answers["unknown"] is E.group_id_not_found
        assert rig.groups.find("g") is None
        assert rig.groups.offsets.total == 0
    async with grouping(tmp_path) as rig:
        assert len(rig.groups) == 0


async def test_a_commit_on_its_way_to_the_disk_is_deleted_with_its_group(tmp_path):
    async with grouping(tmp_path) as rig:
        commit = rig.groups.offsets.commit("g", {("t", 0): (1, -1, "")})
        assert await rig.groups.delete("g") is E.none
        await commit
        assert rig.groups.find("g") is None
        assert rig.groups.offsets.total == 0
    async with grouping(tmp_path) as rig:
        assert len(rig.groups) == 0


async def test_a_group_that_cannot_be_deleted_is_still_there(tmp_path, monkeypatch):
    def full(_self, _rows):
        raise StorageFull("no room")

    async with grouping(tmp_path) as rig:
        await rig.groups.offsets.commit("g", {("t", 0): (7, -1, "")})
        with monkeypatch.context() as patched:
            patched.setattr(KeptTable, "put", full)
            assert await rig.groups.delete("g") is E.coordinator_not_available
        assert rig.groups.offsets.find("g").find("t", 0).offset == 7
        assert rig.groups.offsets.total == 1
        assert await rig.groups.delete("g") is E.none


async def test_a_group_of_which_nothing_is_left_is_forgotten_at_the_next_look(tmp_path):
    async with grouping(tmp_path) as rig:
        leave(rig, await rig.member())
        assert rig.groups.find("g") is not None
        rig.timers.advance(600)
        await rig.settled()
        assert rig.groups.find("g") is None
    async with grouping(tmp_path) as rig:
        assert len(rig.groups) == 0


# -- the journal


async def test_what_is_put_in_one_pass_is_one_batch(tmp_path):
    async with grouping(tmp_path) as rig:
        partition = rig.broker.streams.get(STREAM).partitions[0]
        before = batches_of(partition)
        commits = [rig.groups.offsets.commit(f"g{n}", {("t", n): (n, -1, "")}) for n in range(100)]
        await asyncio.gather(*commits)
        assert batches_of(partition) == before + 1
        assert rig.groups.offsets.total == 100


async def test_a_pass_with_very_much_is_several_batches(tmp_path):
    async with running(tmp_path) as broker:
        table = await KeptTable.open(broker.streams, ManualClock(), STREAM)
        journal = Journal(table)
        done = [asyncio.get_running_loop().create_future() for _ in range(3)]
        for name, answer in zip((b"a", b"b", b"c"), done, strict=True):
            journal.put([(name, b"x" * (BATCH_BYTES // 2 + 1))], answer.set_result)
        assert await asyncio.gather(*done) == [None, None, None]
        assert journal.batches == 3


async def test_a_row_that_cannot_be_read_stops_the_start(tmp_path):
    async with running(tmp_path) as broker:
        table = await KeptTable.open(broker.streams, ManualClock(), STREAM)
        await table.put([(b"junk", b"junk")])
    with pytest.raises(StateUnknown, match="cannot be read"):
        async with grouping(tmp_path):
            pass
