"""Linked transactions over a real broker: one decision for all, once, whatever is asked again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from onelog.config.kafka import KafkaTransactions
from onelog.protocols.kafka.errors import ErrorCode, KafkaError
from onelog.protocols.kafka.transactions import linking, links
from onelog.protocols.kafka.transactions.coordinator import STREAM, SWEEP_S
from onelog.protocols.kafka.transactions.links import LinkRequest, member_of
from onelog.protocols.kafka.transactions.state import Facts, Producer, State
from onelog.record.batch import iterate_batches
from tests.support.kafka_txn import TIMEOUT_MS, Desk, desk, refused

E = ErrorCode
DAY_S = 24 * 3600.0


async def staged(at: Desk, batch: int, *tasks: str, query: str = "q") -> dict[str, Producer]:
    """One transaction per task; each has written its own name."""
    return {
        (name := f"~link/{query}/{batch}/{task}"): await at.stage(name, task, number=at_ % 2)
        for at_, task in enumerate(tasks)
    }


def seen(at: Desk) -> list[str]:
    return sorted(at.committed("a", 0) + at.committed("a", 1))


def known(at: Desk) -> list[str]:
    return [name for name, _facts in at.coordinator.listed()]


def test_a_member_says_whose_it_is():
    assert member_of("~link/q/7/3-0") == ("q", 7)
    assert member_of("~link/q/7/3/0") == ("q", 7)
    assert member_of("link/q/7/3") is None


@pytest.mark.parametrize(
    "name",
    [
        "~link/",
        "~link/q",
        "~link/q/7",
        "~link/q/7/",
        "~link//7/x",
        "~link/q/-1/x",
        f"~link/q/{2**63}/x",
        "~link/q/\u0667/x",
        f"~link/{'q' * 257}/1/x",
    ],
)
async def test_an_id_that_only_begins_as_a_members_is_refused(tmp_path: Path, name: str):
    assert member_of(name) is None
    async with desk(tmp_path) as at:
        with refused(E.invalid_request):
            await at.init(name)
        assert known(at) == []


async def test_a_batch_is_seen_when_it_is_linked_and_not_before(tmp_path: Path):
    async with desk(tmp_path) as at:
        members = await staged(at, 0, "x", "y")
        assert seen(at) == []
        assert await at.link(0, members) == "linked"
        assert seen(at) == ["x", "y"]
        assert at.is_stable("a", 0)
        assert at.is_stable("a", 1)
        assert known(at) == [], "ids of members are used once"
        assert at.log("a", 0).producers.entries() == []


async def test_mark_and_members_are_one_batch_of_the_log(tmp_path: Path):
    async with desk(tmp_path) as at:
        members = await staged(at, 0, "x", "y")
        log = at.broker.streams.find(STREAM).partitions[0]
        end = log.end_offset
        await at.link(0, members)
        first, _slices = next(iter(iterate_batches(log.read(end, 1 << 20))))
        assert first.last_offset == end + 2


async def test_a_batch_that_is_linked_again_is_there_once(tmp_path: Path):
    async with desk(tmp_path) as at:
        first = await staged(at, 3, "x")
        assert await at.link(3, first) == "linked"
        assert await at.link(3, first) == "already", "the answer was lost"
        again = await staged(at, 3, "x")
        assert await at.link(3, again) == "already"
        earlier = await staged(at, 2, "w")
        assert await at.link(2, earlier) == "already"
        await at.settle()
        assert seen(at) == ["x"]
        assert at.is_stable("a", 0)
        assert known(at) == []
        assert await at.link(4, await staged(at, 4, "y")) == "linked"
        assert seen(at) == ["x", "y"]


async def test_a_mark_outlives_a_crash(tmp_path: Path):
    async with desk(tmp_path) as at:
        await at.link(3, await staged(at, 3, "x"))
        again = await staged(at, 3, "x")
        await at.crash()
        assert await at.link(3, again) == "already"
        assert seen(at) == ["x"]
        assert at.coordinator.links.marks.batch("q") == 3
        assert at.coordinator.links.marks.batch("other") == links.NO_BATCH


@pytest.mark.parametrize("crashes", [1, 2])
async def test_a_linked_batch_gets_its_markers_after_a_crash(tmp_path: Path, crashes: int):
    async with desk(tmp_path) as at:
        members = await staged(at, 0, "x", "y")
        with at.without_markers():
            request = asyncio.ensure_future(at.link(0, members))
            await at.settle()
            request.cancel()
            for _ in range(crashes):
                await at.crash()
                await at.settle()
        assert seen(at) == []
        await at.crash()
        await at.settle()
        assert seen(at) == ["x", "y"]
        assert known(at) == []
        assert await at.link(0, members) == "already"


async def test_all_members_or_none(tmp_path: Path):
    async with desk(tmp_path) as at:
        members = await staged(at, 0, "x", "y")
        gone = {**members, "~link/q/0/z": Producer(77, 0)}
        with refused(E.invalid_producer_id_mapping):
            await at.link(0, gone)
        (first, producer), *_ = members.items()
        with refused(E.producer_fenced):
            await at.link(0, {**members, first: Producer(producer.id, producer.epoch + 1)})
        with refused(E.invalid_producer_id_mapping):
            await at.link(0, {**members, first: Producer(producer.id + 1000, 0)})
        assert at.coordinator.find(first).state is State.ONGOING
        assert seen(at) == []
        assert await at.link(0, members) == "linked"


async def test_members_of_another_batch_and_twice_the_same_are_refused(tmp_path: Path):
    async with desk(tmp_path) as at:
        members = await staged(at, 1, "x")
        with refused(E.invalid_request):
            await at.link(2, members)
        with refused(E.invalid_request):
            await at.link(1, {"t": Producer(1, 0)})
        ((name, producer),) = members.items()
        twice = LinkRequest("q", 1, True, [(name, *producer), (name, *producer)])
        with refused(E.invalid_request):
            await at.coordinator.links.link(twice, "user", lambda _facts: None)


async def test_a_batch_without_members_moves_the_mark(tmp_path: Path):
    async with desk(tmp_path) as at:
        assert await at.link(5, {}) == "linked"
        assert await at.link(5, {}) == "already"


async def test_what_failed_tasks_left_is_aborted_with_the_link(tmp_path: Path):
    async with desk(tmp_path) as at:
        await staged(at, 0, "dead driver")
        await staged(at, 1, "failed attempt")
        await at.init("~link/q/1/never began")
        later = await staged(at, 2, "later")
        other = await staged(at, 0, "other", query="r")
        assert await at.link(1, await staged(at, 1, "x")) == "linked"
        await at.settle()
        assert sorted(known(at)) == sorted([*later, *other])
        await at.link(2, later)
        await at.link(0, other, query="r")
        assert seen(at) == ["later", "other", "x"]


async def test_to_abort_ends_what_is_open_and_nothing_that_was_linked(tmp_path: Path):
    """Spark aborts a batch also when its commit took effect and only the answer was lost."""
    async with desk(tmp_path) as at:
        members = await staged(at, 0, "x")
        await at.link(0, members)
        assert await at.link(0, members, commit=False) == "aborted"
        assert seen(at) == ["x"]
        assert await at.link(1, await staged(at, 1, "y"), commit=False) == "aborted"
        await at.settle()
        assert seen(at) == ["x"]
        assert at.is_stable("a", 0)
        assert known(at) == []
        assert await at.link(1, await staged(at, 1, "y")) == "linked"
        assert seen(at) == ["x", "y"]


async def test_an_abort_over_a_link_whose_markers_wait_changes_nothing(tmp_path: Path):
    async with desk(tmp_path) as at:
        members = await staged(at, 0, "x")
        with at.without_markers():
            request = asyncio.ensure_future(at.link(0, members))
            await at.settle()
            assert await at.link(0, members, commit=False) == "aborted"
            assert await at.link(0, members) == "already"
        at.timers.pass_time(5)
        assert await request == "linked"
        assert seen(at) == ["x"]


async def test_the_metrics_count_links_and_replays(tmp_path: Path):
    async with desk(tmp_path) as at:
        await at.link(0, await staged(at, 0, "x"))
        await at.link(0, {})
        await at.link(1, {}, commit=False)
        found = {row.name: row.value for row in at.coordinator.links.samples()}
        assert found == {
            "onelog_kafka_links_total": 1,
            "onelog_kafka_links_replayed_total": 1,
            "onelog_kafka_link_marks": 1,
        }


async def test_an_answer_does_not_wait_for_ever_for_markers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(linking, "VISIBLE_WAIT_S", 0.01)
    async with desk(tmp_path) as at:
        members = await staged(at, 0, "x")
        with at.without_markers():
            assert await at.link(0, members) == "linked"
        assert seen(at) == []
        at.timers.pass_time(5)
        await at.settle()
        assert seen(at) == ["x"]


async def test_a_member_is_not_committed_by_its_producer(tmp_path: Path):
    async with desk(tmp_path) as at:
        ((name, producer),) = (await staged(at, 0, "x")).items()
        with refused(E.invalid_txn_state):
            await at.end(producer, transactional_id=name)
        await at.end(producer, commit=False, transactional_id=name)
        await at.settle()
        assert (seen(at), known(at)) == ([], [])


async def test_an_orphan_ends_by_its_timeout_and_leaves_nothing(tmp_path: Path):
    async with desk(tmp_path) as at:
        members = await staged(at, 0, "x")
        at.timers.pass_time(TIMEOUT_MS / 1000)
        await at.settle()
        assert (seen(at), known(at)) == ([], [])
        assert at.is_stable("a", 0)
        with refused(E.invalid_producer_id_mapping):
            await at.link(0, members)
        # Nobody waits for the row that says so: a crash before it is durable ends the orphan again.
        await at.broker.streams.get(STREAM).make_durable()
        await at.crash()
        assert known(at) == []


async def test_who_may_not_write_to_a_topic_links_and_aborts_nothing(tmp_path: Path):
    def check(facts: Facts) -> None:
        raise KafkaError(E.topic_authorization_failed, f"not {sorted(facts.partitions)}")

    async with desk(tmp_path) as at:
        members = await staged(at, 0, "x")
        with refused(E.topic_authorization_failed):
            await at.link(0, members, check=check)
        with refused(E.topic_authorization_failed):
            await at.link(0, {}, check=check, commit=False)
        with refused(E.topic_authorization_failed):
            await at.link(0, {}, check=check)
        assert at.coordinator.links.marks.batch("q") == links.NO_BATCH
        assert await at.link(0, members) == "linked"


async def test_nobody_moves_the_mark_of_another_user(tmp_path: Path):
    async with desk(tmp_path) as at:
        await at.link(0, {}, owner="alice")
        await at.crash()
        for commit in (True, False):
            with refused(E.transactional_id_authorization_failed):
                await at.link(2**60, {}, owner="mallory", commit=commit)
        assert await at.link(1, {}, owner="alice") == "linked"


async def test_marks_are_bounded_and_those_of_finished_jobs_go_first(tmp_path: Path):
    async with desk(tmp_path, KafkaTransactions(marks=2)) as at:
        await at.link(0, {}, "query")
        await at.link(0, {}, "job", once=True)
        await at.link(0, {}, "second")
        with refused(E.policy_violation):
            await at.link(0, {}, "third")
        assert await at.link(1, {}, "query") == "linked"
        await at.crash()
        marks = at.coordinator.links.marks
        assert (len(marks), marks.batch("query"), marks.batch("job")) == (2, 1, links.NO_BATCH)


async def test_old_marks_are_forgotten(tmp_path: Path):
    async with desk(tmp_path) as at:
        await at.link(0, {}, "job", once=True)
        await at.link(7, {}, "query")
        at.timers.pass_time(8 * DAY_S)
        marks = at.coordinator.links.marks
        assert (marks.batch("job"), marks.batch("query")) == (links.NO_BATCH, 7)
        at.timers.pass_time(365 * DAY_S)
        at.timers.pass_time(SWEEP_S)
        assert len(marks) == 0
        await at.coordinator.links._newest[0]
        await at.crash()
        assert len(at.coordinator.links.marks) == 0


async def test_a_link_of_too_many_bytes_is_refused_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(linking, "ROWS_BYTES_MAX", 100)
    async with desk(tmp_path) as at:
        members = await staged(at, 0, "x", "y", "z", "w")
        with refused(E.policy_violation):
            await at.link(0, members)
        assert seen(at) == []


def test_a_request_has_bounds():
    good = {"query": "q", "batch": 0, "commit": True, "members": []}
    bad = [
        {"query": "", "members": []},
        {"query": "a/b"},
        {"query": "q" * 257},
        {"batch": -1},
        {"batch": 2**63},
        {"members": [["t", 1, 1]] * 10_001},
        {"members": [["t", 1]]},
        {"surprise": 1},
    ]
    assert msgspec.convert(good, LinkRequest).batch == 0
    for change in bad:
        with refused(E.invalid_request):
            linking._decode(msgspec.json.encode(good | change))
    for body in (b"", b"{", b"\xff", b"[" * 5_000_000):
        with refused(E.invalid_request):
            linking._decode(body)
