"""Does a replica count, cut, enter and leave exactly as the rules of replication say?"""

from __future__ import annotations

from typing import TypeVar

import msgspec
import pytest

from onelog.base.ids import PartitionId
from onelog.cluster.controller import recover
from onelog.cluster.feeds import FULL_PIECES_MAX, WINDOW_BYTES, FeedState
from onelog.cluster.follower import REOPEN_S, FeedNumbers, ReplicaFollower
from onelog.cluster.frames import (
    AckFeed,
    CloseFeed,
    CloseReason,
    Diverge,
    FeedBatches,
    FeedLane,
    MarkFeed,
    OpenFeed,
)
from onelog.cluster.leader import ReplicaLeader
from onelog.cluster.membership import RETRY_S, RowOutcome
from onelog.cluster.outputs import (
    AppendCopy,
    CopyAnew,
    CutLog,
    Follow,
    Lead,
    ReadPiece,
    ReadRow,
    SendFrame,
    StopReplica,
    TakeMark,
    WriteRow,
)
from onelog.cluster.replica import FULL_S, ClusterReplica
from onelog.cluster.rows import (
    NOBODY,
    NodeFacts,
    ReplicaSet,
    new_row,
    with_leader,
    with_member,
    without_leader,
    without_lost,
    without_members,
)
from onelog.log.promises import Durability
from onelog.storage.engine import PartitionKey
from tests.simulation.cluster.log import SimulatedLog

KEY = PartitionKey("s-1", PartitionId(0))
EPOCHS = {1: 11, 2: 12, 3: 13}
NODES = {n: NodeFacts(node=n, node_epoch=epoch) for n, epoch in EPOCHS.items()}
LAG_S = 5.0

T = TypeVar("T")


def of(kind: type[T], outputs: list[object]) -> list[T]:
    """The outputs of one kind; frames are looked for in what is sent."""
    bare = [one.frame if isinstance(one, SendFrame) else one for one in outputs]
    return [one for one in bare if isinstance(one, kind)]


def filled(*epochs: int) -> SimulatedLog:
    """A log with one durable record of each epoch."""
    log = SimulatedLog()
    for value, epoch in enumerate(epochs):
        log.append(epoch, value)
    log.durable = log.end
    return log


class Led:
    """A leader on node 1, and what it did."""

    def __init__(
        self,
        log: SimulatedLog,
        *,
        level: Durability = Durability.FSYNC,
        min_insync: int = 2,
        isr: tuple[int, ...] = (1, 2, 3),
        epoch: int = 1,
    ) -> None:
        row = new_row((1, 2, 3), EPOCHS, min_insync, level)
        row = without_lost(row, {1, 2, 3} - set(isr))
        fields = {name: getattr(row, name) for name in row.__struct_fields__}
        self.row = ReplicaSet(**{**fields, "epoch": epoch})
        self.log = log
        log.epochs.note(epoch, log.end)
        self.leader = ReplicaLeader(KEY, 1, self.row, 40, log, NODES, LAG_S, 0.0)

    def open(self, node: int, end: int, last_epoch: int = 1, *, durable: int | None = None) -> None:
        epoch = self.leader.epoch
        frame = OpenFeed(node, KEY, epoch, end, end if durable is None else durable, last_epoch)
        self.leader.opened(node, EPOCHS[node], frame, 0.0)

    def ack(self, node: int, written: int, durable: int, now: float = 0.0) -> None:
        self.leader.acked(node, AckFeed(node, self.leader.epoch, written, durable), now)

    def feed(self, now: float = 0.0) -> list[object]:
        """Take turns until there is nothing to read; returns everything else."""
        found: list[object] = []
        while outputs := self.leader.flush(now):
            for output in outputs:
                if isinstance(output, ReadPiece):
                    data = self.log.read(output.offset, output.upto, 100)
                    end = output.offset + len(data)
                    sent = self.leader.piece(output.node, output.feed, b"x" * len(data), end)
                    found += [sent] if sent is not None else []
                else:
                    found.append(output)
        return found


# -- the high watermark


@pytest.mark.parametrize(("level", "mark"), [(Durability.FSYNC, 1), (Durability.OS, 2)])
def test_the_high_watermark_is_the_lowest_end_at_the_streams_level(level, mark):
    led = Led(filled(1, 1, 1), level=level)
    led.open(2, 0, -1)
    led.open(3, 0, -1)
    led.feed()
    led.ack(2, 3, 3)
    assert led.leader.high_watermark == 0
    led.ack(3, 2, 1)
    assert led.leader.high_watermark == mark


def test_the_high_watermark_stands_still_while_the_isr_is_too_small():
    led = Led(filled(1, 1), isr=(1,))
    assert not led.leader.takes_records
    led.leader.progress()
    assert led.leader.high_watermark == 0


def test_a_replica_that_is_proposed_counts_before_the_row_is_written():
    led = Led(filled(1, 1), isr=(1, 2))
    led.open(2, 2)
    led.open(3, 2)
    assert led.leader.high_watermark == 2
    changes = of(WriteRow, led.feed())
    assert set(changes[0].change.row.isr) == {1, 2, 3}
    assert changes[0].change.nodes == ((3, 13),)
    led.log.append(1, 9)
    led.log.durable = 3
    led.feed()
    led.ack(2, 3, 3)
    assert led.leader.high_watermark == 2, "the third may be in sync already"
    led.ack(3, 3, 3)
    assert led.leader.high_watermark == 3


def test_an_end_counts_only_from_a_feed_of_this_epoch():
    led = Led(filled(1, 1))
    led.leader.acked(2, AckFeed(2, 1, 2, 2), 0.0)
    assert led.leader.end_of_replica(2) == -1


def test_a_replica_enters_only_when_it_has_reached_the_start_of_this_epoch():
    """Below it there may be records that another leader answered."""
    led = Led(filled(1, 1, 1), isr=(1, 2), epoch=2)
    led.open(3, 1)
    assert not of(WriteRow, led.feed())
    led.ack(3, 3, 3)
    assert of(WriteRow, led.feed())


def test_until_the_mark_reaches_the_epochs_start_nobody_gets_to_know_the_end():
    led = Led(filled(1, 1), epoch=2)
    assert not led.leader.is_settled
    led.open(2, 2)
    led.open(3, 2)
    assert led.leader.is_settled


def test_a_draining_node_or_another_process_of_a_node_does_not_enter():
    for facts in (
        NodeFacts(node=3, node_epoch=13, draining=True),
        NodeFacts(node=3, node_epoch=14),
        NodeFacts(node=3),
    ):
        led = Led(filled(1), isr=(1, 2))
        led.open(3, 1)
        led.leader.nodes_seen({**NODES, 3: facts}, 0.0)
        assert not of(WriteRow, led.feed())


# -- who may lead next


def test_whoever_may_be_elected_next_is_a_rival_while_it_is_proposed_too():
    led = Led(filled(1, 1), isr=(1, 2), min_insync=1)
    assert led.leader.rivals == {2}
    led.open(3, 2)
    assert of(WriteRow, led.feed())
    assert led.leader.rivals == {2, 3}
    led = Led(filled(1, 1), isr=(1, 2), min_insync=2)
    led.leader.row_seen(without_members(led.row, [2]), 41, 0.0)
    assert led.leader.rivals == {2}, "it waits in the ELR"
    assert Led(filled(1, 1), isr=(1,), min_insync=1).leader.rivals == set()


def test_a_replica_is_fed_from_its_opening_until_it_closes_or_its_link_breaks():
    led = Led(filled(1, 1))
    assert not led.leader.feeds(2)
    for end in (
        lambda: led.leader.closed(2, CloseFeed(2, 2, CloseReason.FENCED, by_copy=True), 0.0),
        lambda: led.leader.link_lost(2, 0.0),
    ):
        led.open(2, 2)
        assert led.leader.feeds(2)
        end()
        assert not led.leader.feeds(2)
    led.leader.opened(3, EPOCHS[3], OpenFeed(3, KEY, 1, 2, 2, 1, observer=True), 0.0)
    assert not led.leader.feeds(3), "an observer is never elected"


# -- leaving


def test_a_replica_that_lags_leaves_and_one_that_is_caught_up_stays_for_ever():
    led = Led(filled(1))
    led.open(2, 1)
    led.open(3, 1)
    led.feed()
    assert not of(WriteRow, led.feed(1000.0))
    led.log.append(1, 5)
    led.log.durable = 2
    led.feed(1000.0)
    led.ack(2, 2, 2, 1000.1)
    assert not of(WriteRow, led.feed(1000.0 + LAG_S - 0.1))
    change = of(WriteRow, led.feed(1000.0 + LAG_S + 0.1))[0].change
    assert set(change.row.isr) == {1, 2}


def test_a_replica_that_is_always_a_little_behind_stays():
    led = Led(filled(1), min_insync=1)
    led.open(2, 1)
    led.open(3, 1)
    for step in range(1, 40):
        now = float(step)
        led.log.append(1, step)
        led.log.durable = led.log.end
        assert not of(WriteRow, led.feed(now))
        led.ack(2, led.log.end - 1, led.log.end - 1, now)
        led.ack(3, led.log.end - 1, led.log.end - 1, now)


def test_a_replica_that_left_for_its_lag_must_be_heard_before_it_enters_again():
    led = Led(filled(1), isr=(1, 2), min_insync=2)
    led.open(2, 1)
    led.log.append(1, 5)
    led.log.durable = 2
    led.feed(0.0)
    change = of(WriteRow, led.feed(LAG_S))[0].change
    led.leader.row_written(change, RowOutcome.DONE, 41, LAG_S)
    assert not of(WriteRow, led.feed(2 * LAG_S)), "its end is the high watermark, but it is silent"
    led.ack(2, 2, 2, 2 * LAG_S)
    assert set(of(WriteRow, led.feed(2 * LAG_S))[0].change.row.isr) == {1, 2}


def test_a_member_that_comes_back_with_less_than_the_mark_has_lost_records():
    led = Led(filled(1, 1))
    led.open(2, 2)
    led.open(3, 2)
    assert led.leader.high_watermark == 2
    led.open(3, 1)
    change = of(WriteRow, led.feed())[0].change
    assert (set(change.row.isr), change.row.elr) == ({1, 2}, {})


# -- the row


def test_a_change_of_unknown_outcome_is_repeated_as_it_is_and_its_isr_counts():
    led = Led(filled(1), isr=(1, 2))
    led.open(2, 1)
    led.open(3, 1)
    change = of(WriteRow, led.feed())[0].change
    led.leader.row_written(change, RowOutcome.UNKNOWN, 0, 0.0)
    assert not led.feed(RETRY_S / 2)
    led.leader.link_lost(3, 0.0)
    assert of(WriteRow, led.feed(RETRY_S))[0].change is change
    assert led.leader.members.maximal() == {1, 2, 3}


def test_a_refused_change_reads_the_row_and_what_it_finds_is_the_outcome():
    led = Led(filled(1), isr=(1, 2))
    led.open(2, 1)
    led.open(3, 1)
    change = of(WriteRow, led.feed())[0].change
    led.leader.row_written(change, RowOutcome.REFUSED, 0, 0.0)
    assert of(ReadRow, led.feed())
    assert led.leader.members.maximal() == {1, 2, 3}, "an earlier attempt may have made it"
    led.leader.row_read(led.row, 40, 0.0)
    assert led.leader.members.pending is None
    assert led.leader.members.maximal() == {1, 2}


def test_an_outcome_of_an_older_change_says_nothing_of_the_pending_one():
    led = Led(filled(1), isr=(1, 2))
    led.open(2, 1)
    led.open(3, 1)
    old = of(WriteRow, led.feed())[0].change
    led.leader.row_seen(without_members(led.row, [2]), 41, 0.0)
    new = of(WriteRow, led.feed())[0].change
    led.leader.row_written(old, RowOutcome.DONE, 42, 0.0)
    assert led.leader.members.pending is new
    assert led.leader.members.revision == 41


def test_a_row_of_another_epoch_deposes_the_leader_and_ends_its_feeds():
    led = Led(filled(1))
    led.open(2, 1)
    led.feed()
    led.leader.row_seen(with_leader(led.row, 2, 12), 41, 0.0)
    assert led.leader.is_over
    assert not led.leader.takes_records
    assert of(CloseFeed, led.leader.flush(0.0))[0].reason is CloseReason.OVER
    led.log.append(1, 7)
    before = led.leader.high_watermark
    led.leader.progress()
    assert led.leader.high_watermark == before


# -- opening


def test_a_copy_of_another_epoch_or_of_an_old_process_is_refused():
    led = Led(filled(1), epoch=3)
    led.leader.opened(2, 12, OpenFeed(1, KEY, 2, 0, 0, -1), 0.0)
    led.leader.opened(2, 11, OpenFeed(2, KEY, 3, 0, 0, -1), 0.0)
    led.leader.opened(9, 19, OpenFeed(3, KEY, 3, 0, 0, -1), 0.0)
    reasons = [frame.reason for frame in of(CloseFeed, led.leader.flush(0.0))]
    assert reasons == [CloseReason.FENCED, CloseReason.NOT_LEADER, CloseReason.NOT_LEADER]


@pytest.mark.parametrize(
    ("own", "end", "last_epoch", "answer"),
    [
        ((1, 1, 3), 3, 3, None),
        ((1, 1, 3), 2, 1, None),
        ((1, 1, 3), 0, -1, None),
        ((1, 1, 3), 3, 1, (1, 2)),
        ((1, 1, 3), 4, 2, (1, 2)),
        ((1, 1, 3), 9, 3, (3, 3)),
        ((2, 2), 1, 1, (-1, 0)),
    ],
)
def test_a_copy_is_compared_by_epoch_and_end(own, end, last_epoch, answer):
    led = Led(filled(*own), epoch=5)
    led.open(2, end, last_epoch)
    found = of(Diverge, led.leader.flush(0.0))
    assert [(one.epoch, one.end) for one in found] == ([] if answer is None else [answer])


def test_a_copy_that_needs_what_is_gone_copies_anew():
    led = Led(filled(1, 1, 1, 1), isr=(1,))
    led.log.high_watermark = 3
    led.log.trim(3)
    led.open(2, 1)
    closed = of(CloseFeed, led.leader.flush(0.0))[0]
    assert (closed.reason, closed.offset) == (CloseReason.BEHIND, 3)
    led.log.gone_below = 4
    led.open(3, 3)
    assert of(CloseFeed, led.leader.flush(0.0))[0].reason is CloseReason.BEHIND
    led.open(3, 3, -1)
    assert not of(CloseFeed, led.leader.flush(0.0)), "it has nothing that was deleted"


def test_a_copy_that_needs_what_is_gone_is_put_off_while_it_may_be_elected():
    led = Led(filled(1, 1, 1, 1))
    led.log.high_watermark = 3
    led.log.trim(3)
    led.open(2, 1)
    outputs = led.leader.flush(0.0)
    assert of(CloseFeed, outputs)[0].reason is CloseReason.OVER
    assert 2 not in of(WriteRow, outputs)[0].change.row.isr


def test_a_member_that_has_what_was_answered_goes_on_however_much_was_compacted():
    """The last segment begins where nothing was answered yet: nothing there is compacted."""
    led = Led(filled(1, 1, 1, 1), isr=(1, 2))
    led.leader.high_watermark = led.log.high_watermark = 2
    led.log.gone_below = 4
    led.open(2, 2)
    outputs = led.leader.flush(0.0)
    assert not of(CloseFeed, outputs)
    assert not of(WriteRow, outputs), "it stays in sync"
    led.open(3, 2)
    assert of(CloseFeed, led.leader.flush(0.0))[0].reason is CloseReason.BEHIND
    led.open(2, 1)
    outputs = led.leader.flush(0.0)
    assert of(CloseFeed, outputs)[0].reason is CloseReason.OVER, "it lacks what was answered"
    assert 2 not in of(WriteRow, outputs)[0].change.row.isr


def test_a_feed_that_the_start_overtook_is_closed():
    led = Led(filled(1, 1, 1))
    led.open(2, 0, -1)
    led.log.high_watermark = 2
    led.log.trim(2)
    assert of(CloseFeed, led.leader.flush(0.0))[0].reason is CloseReason.BEHIND


# -- feeds


def test_pieces_follow_each_other_and_a_mark_goes_when_there_is_nothing_to_send():
    led = Led(filled(1, 1))
    led.open(2, 0, -1)
    first = of(FeedBatches, led.feed())[0]
    assert (first.after, first.high_watermark, len(first.data)) == (0, 0, 2)
    led.open(3, 2)
    led.ack(2, 2, 2)
    marks = of(MarkFeed, led.feed())
    assert {mark.high_watermark for mark in marks} == {2}


def test_an_observer_gets_only_what_is_below_the_mark_and_never_counts():
    led = Led(filled(1, 1), isr=(1,), min_insync=1)
    frame = OpenFeed(7, KEY, 1, 0, 0, -1, observer=True)
    led.leader.opened(9, 19, frame, 0.0)
    led.log.durable = 1
    led.leader.progress()
    pieces = of(ReadPiece, led.leader.flush(0.0))
    assert [(one.offset, one.upto) for one in pieces] == [(0, 1)]
    assert 9 not in led.leader._ends
    assert not of(WriteRow, led.leader.flush(0.0))


def test_acknowledgements_are_the_credit_of_a_feed():
    feed = FeedState(1, 2, 12, 0, FeedLane.LIVE, observer=False)
    feed.sent(10, WINDOW_BYTES, is_last=True)
    assert not feed.wants(20)
    feed.acked(9)
    assert not feed.wants(20)
    feed.acked(10)
    assert feed.wants(20)


def test_a_feed_changes_its_lane_only_when_nothing_is_under_way():
    feed = FeedState(1, 2, 12, 0, FeedLane.BULK, observer=False)
    feed.sent(10, 100, is_last=False)
    feed.sent(20, 100, is_last=True)
    assert (feed.lane, feed.wants(30)) == (FeedLane.BULK, False)
    feed.acked(20)
    assert (feed.lane, feed.wants(30)) == (FeedLane.LIVE, True)
    for end in range(30, 30 + FULL_PIECES_MAX):
        feed.sent(end, 100, is_last=False)
    assert not feed.wants(100)
    feed.acked(100)
    assert feed.lane is FeedLane.BULK


# -- followers


class Copy:
    """A follower on node 2."""

    def __init__(self, log: SimulatedLog, *, observer: bool = False, epoch: int = 5) -> None:
        row = new_row((1, 2, 3), EPOCHS, 2, Durability.FSYNC)
        fields = {name: getattr(row, name) for name in row.__struct_fields__}
        self.row = ReplicaSet(**{**fields, "epoch": epoch})
        self.log = log
        self.follower = ReplicaFollower(KEY, 2, log, FeedNumbers(), observer=observer)
        self.follower.linked(1, 0.0)
        self.follower.row_seen(self.row, 0.0)

    def opened(self, now: float = 0.0) -> OpenFeed:
        return of(OpenFeed, self.follower.flush(now))[0]


def test_a_copy_opens_with_its_end_and_the_epoch_of_its_last_record():
    log = filled(1, 1, 3)
    log.epochs.note(4, 3)  # it led, and wrote nothing
    frame = Copy(log).opened()
    assert (frame.end, frame.last_epoch, frame.leader_epoch) == (3, 3, 5)


@pytest.mark.parametrize(
    ("own", "epoch", "end", "cut"),
    [
        ((1, 1, 3, 3), 1, 9, 2),
        ((1, 1, 3, 3), 1, 1, 1),
        ((1, 1, 3, 3), 3, 3, 3),
        ((2, 2), -1, 0, 0),
        ((3, 3), 1, 2, 0),  # every epoch here is newer: nothing is common
    ],
)
def test_a_copy_that_diverges_is_cut_to_the_lower_of_both_ends(own, epoch, end, cut):
    copy = Copy(filled(*own))
    feed = copy.opened().feed
    copy.follower.take(Diverge(feed, 5, epoch, end), 0.0)
    assert [one.end for one in of(CutLog, copy.follower.flush(0.0))] == [cut]
    assert not copy.follower.flush(10.0), "it is being cut"
    copy.log.truncate(cut)
    copy.follower.cut(10.0)
    assert copy.opened(10.0).end == cut


def test_a_copy_of_older_epochs_begins_where_the_log_of_its_leader_does():
    copy = Copy(filled(1, 1, 1))
    copy.log.high_watermark = 2
    copy.follower.take(Diverge(copy.opened().feed, 5, -1, 2), 0.0)
    assert [one.start for one in of(CopyAnew, copy.follower.flush(0.0))] == [2]


def test_a_cut_below_the_high_watermark_stops_the_replica():
    copy = Copy(filled(1, 1, 3))
    copy.log.high_watermark = 3
    copy.follower.take(Diverge(copy.opened().feed, 5, 1, 2), 0.0)
    assert of(StopReplica, copy.follower.flush(0.0))


def test_a_copy_from_before_a_known_loss_begins_anew():
    copy = Copy(filled(1, 1, 3))
    copy.log.high_watermark = 3
    fields = {name: getattr(copy.row, name) for name in copy.row.__struct_fields__}
    copy.follower.row_seen(ReplicaSet(**{**fields, "epoch": 6, "recover": 6}), 0.0)
    copy.follower.take(Diverge(copy.opened().feed, 6, 1, 2), 0.0)
    assert of(CopyAnew, copy.follower.flush(0.0))


def test_an_observer_from_before_a_known_loss_begins_anew():
    copy = Copy(filled(1, 1), observer=True)
    fields = {name: getattr(copy.row, name) for name in copy.row.__struct_fields__}
    copy.follower.row_seen(ReplicaSet(**{**fields, "epoch": 6, "recover": 6}), 0.0)
    copy.follower.take(Diverge(copy.opened().feed, 6, 1, 1), 0.0)
    assert of(CopyAnew, copy.follower.flush(0.0))


def test_an_observer_is_never_cut():
    copy = Copy(filled(1, 1), observer=True)
    copy.follower.take(Diverge(copy.opened().feed, 5, 1, 1), 0.0)
    assert of(StopReplica, copy.follower.flush(0.0))


def test_a_piece_that_does_not_follow_is_refused_and_the_feed_opened_again():
    copy = Copy(filled(1))
    feed = copy.opened().feed
    lost = FeedBatches(feed, 5, 3, 0, 0, 0, b"")
    copy.follower.take(lost, 0.0)
    assert of(AppendCopy, copy.follower.flush(0.0))
    assert not copy.follower.accepts(lost, 0.0)
    outputs = copy.follower.flush(0.0)
    assert of(CloseFeed, outputs)[0].reason is CloseReason.GAP
    assert of(OpenFeed, outputs)[0].feed > feed


def test_frames_of_an_older_epoch_are_refused_from_the_moment_that_the_row_is_seen():
    copy = Copy(filled(1))
    feed = copy.opened().feed
    copy.follower.row_seen(with_leader(copy.row, 3, 13), 0.0)
    copy.follower.take(FeedBatches(feed, 5, 1, 0, 0, 0, b""), 0.0)
    copy.follower.take(MarkFeed(feed, 5, 1, 0, 0), 0.0)
    outputs = copy.follower.flush(0.0)
    assert not of(AppendCopy, outputs)
    assert not of(TakeMark, outputs)


def test_the_old_leader_hears_first_that_a_copy_knows_of_another_epoch():
    """So an open feed proves that its copy has not begun to lead."""
    for leader in (3, 2, NOBODY):
        copy = Copy(filled(1))
        feed, row = copy.opened().feed, without_leader(copy.row)
        if leader != NOBODY:
            row = with_leader(copy.row, leader, EPOCHS[leader])
        copy.follower.row_seen(row, 0.0)
        first = copy.follower.flush(0.0)[0]
        assert first.node == 1
        assert first.frame == CloseFeed(feed, row.epoch, CloseReason.FENCED, by_copy=True)


def test_written_and_durable_are_acknowledged_once_each():
    copy = Copy(filled(1))
    copy.opened()
    assert copy.follower.acknowledge() is None
    copy.log.append(5, 9)
    ack = copy.follower.acknowledge()
    assert ack is not None
    assert ack.frame == AckFeed(1, 5, 2, 1)
    assert copy.follower.acknowledge() is None
    copy.log.durable = 2
    ack = copy.follower.acknowledge()
    assert ack is not None
    assert ack.frame == AckFeed(1, 5, 2, 2)


def test_a_refused_feed_is_opened_again_later_and_the_row_is_read():
    copy = Copy(filled(1))
    feed = copy.opened().feed
    copy.follower.take(CloseFeed(feed, 7, CloseReason.FENCED), 0.0)
    outputs = copy.follower.flush(0.0)
    assert of(ReadRow, outputs)
    assert not of(OpenFeed, outputs)
    assert copy.opened(REOPEN_S).feed > feed


def test_a_damaged_replica_copies_anew_only_when_its_leader_says_so():
    copy = Copy(filled(1, 1))
    copy.opened()
    copy.follower.damaged(0.0)
    closed = of(CloseFeed, copy.follower.flush(0.0))[0]
    assert closed.reason is CloseReason.DAMAGED
    copy.follower.take(CloseFeed(closed.feed, 5, CloseReason.BEHIND, 0), 0.0)
    outputs = copy.follower.flush(REOPEN_S)
    assert not of(CopyAnew, outputs)
    copy.follower.row_seen(without_lost(copy.row, [2]), REOPEN_S)
    outputs = copy.follower.flush(2 * REOPEN_S)
    assert not of(CopyAnew, outputs), "a change that adds it may be under way"
    feed = of(CloseFeed, outputs)[0].feed
    copy.follower.take(CloseFeed(feed, 5, CloseReason.DAMAGED), 2 * REOPEN_S)
    assert of(CopyAnew, copy.follower.flush(2 * REOPEN_S))


def test_a_leader_lets_go_of_a_damaged_replica_when_no_change_may_add_it():
    led = Led(filled(1, 1), isr=(1, 2))
    led.open(3, 2, 1)
    change = of(WriteRow, led.leader.flush(0.0))[0].change
    assert 3 in change.row.isr
    led.leader.closed(3, CloseFeed(3, led.leader.epoch, CloseReason.DAMAGED, by_copy=True), 0.0)
    assert not of(CloseFeed, led.leader.flush(0.0)), "it may be in sync a moment later"
    led.leader.row_written(change, RowOutcome.DONE, 90, 0.0)
    left = of(WriteRow, led.leader.flush(0.0))[0].change
    assert 3 not in left.row.isr
    led.leader.row_written(left, RowOutcome.DONE, 91, 0.0)
    led.leader.closed(3, CloseFeed(3, led.leader.epoch, CloseReason.DAMAGED, by_copy=True), 0.0)
    found = of(CloseFeed, led.leader.flush(0.0))
    assert [one.reason for one in found] == [CloseReason.DAMAGED]


def test_a_node_that_the_row_does_not_list_opens_nothing():
    copy = Copy(filled(1, 1))
    fields = {name: getattr(copy.row, name) for name in copy.row.__struct_fields__}
    copy.follower.row_seen(ReplicaSet(**{**fields, "epoch": 6, "replicas": (1, 3)}), 0.0)
    assert not copy.follower.flush(0.0)


# -- roles


def machine(log: SimulatedLog, *, is_damaged: bool = False) -> ClusterReplica:
    replica = ClusterReplica(
        KEY, 1, log, FeedNumbers(), node_epoch=11, lag_s=LAG_S, is_damaged=is_damaged
    )
    replica.nodes_seen(NODES, 0.0)
    return replica


ROW = new_row((1, 2, 3), EPOCHS, 2, Durability.FSYNC)


def test_a_replica_leads_only_as_the_process_that_was_elected():
    replica = machine(filled(1))
    replica.row_seen(ROW, 40, 0.0)
    assert of(Lead, replica.flush(0.0))
    other = machine(filled(1))
    other.node_epoch = 99
    other.row_seen(ROW, 40, 0.0)
    assert not of(Lead, other.flush(0.0))
    other.registered(11, 0.0)
    assert of(Lead, other.flush(0.0))


def test_an_older_revision_of_the_row_changes_nothing():
    replica = machine(filled(1))
    replica.row_seen(with_leader(ROW, 2, 12), 41, 0.0)
    replica.row_seen(ROW, 40, 0.0)
    assert replica.row.epoch == 2
    assert not of(Lead, replica.flush(0.0))


def test_a_deposed_leader_follows_the_next_one():
    replica = machine(filled(1))
    replica.linked(2, 0.0)
    replica.row_seen(ROW, 40, 0.0)
    replica.flush(0.0)
    replica.lead(0.0)
    replica.row_seen(with_leader(ROW, 2, 12), 41, 0.0)
    outputs = replica.flush(0.0)
    assert of(Follow, outputs)
    assert of(OpenFeed, outputs)[0].leader_epoch == 2
    assert not replica.is_leading


def test_a_damaged_replica_that_is_elected_writes_a_row_without_itself():
    replica = machine(filled(1), is_damaged=True)
    replica.row_seen(ROW, 40, 0.0)
    outputs = replica.flush(0.0)
    assert not of(Lead, outputs)
    change = of(WriteRow, outputs)[0].change
    assert (change.expected, change.row.leader) == (40, NOBODY)
    assert 1 not in change.row.isr
    assert 1 not in change.row.elr
    replica.flush(RETRY_S)
    assert replica.due > RETRY_S, "the outcome is what happens next"
    replica.row_written(change, RowOutcome.UNKNOWN, 0, RETRY_S)
    assert of(WriteRow, replica.flush(RETRY_S))


def test_a_damaged_replica_in_memory_that_is_named_after_a_loss_begins_empty():
    replica = machine(filled(1), is_damaged=True)
    row = new_row((1,), EPOCHS, 1, Durability.MEMORY)
    replica.row_seen(recover(row, NODES[1]), 40, 0.0)
    outputs = replica.flush(0.0)
    assert of(CopyAnew, outputs)
    assert not of(WriteRow, outputs)
    assert not of(Lead, replica.flush(0.0)), "it is being cut"
    replica.cut(0.0)
    assert of(Lead, replica.flush(0.0))
    replica.lead(0.0)
    replica.damaged(0.0)
    outputs = replica.flush(0.0)
    assert not of(CopyAnew, outputs), "others may have records of this epoch"
    assert of(WriteRow, outputs)


def test_a_leader_whose_log_breaks_steps_down():
    replica = machine(filled(1))
    replica.row_seen(ROW, 40, 0.0)
    replica.flush(0.0)
    replica.lead(0.0)
    replica.damaged(0.0)
    outputs = replica.flush(0.0)
    assert of(Follow, outputs)
    assert of(WriteRow, outputs)[0].change.row.leader == NOBODY


def led(row: ReplicaSet = ROW) -> ClusterReplica:
    replica = machine(filled(1))
    replica.row_seen(row, 40, 0.0)
    replica.flush(0.0)
    replica.lead(0.0)
    return replica


def test_a_leader_whose_disk_stays_full_lets_others_lead():
    replica = led()
    replica.room(0.0, is_full=True)
    replica.room(1.0, is_full=True)
    assert not of(WriteRow, replica.flush(FULL_S - 0.1))
    assert replica.due == FULL_S
    change = of(WriteRow, replica.flush(FULL_S))[0].change
    assert (change.expected, change.row.leader) == (40, NOBODY)
    assert change.row.isr.keys() == {2, 3}
    assert replica.is_leading, "until the row says otherwise"
    replica.row_written(change, RowOutcome.DONE, 41, FULL_S)
    assert of(Follow, replica.flush(FULL_S))
    assert not of(WriteRow, replica.flush(2 * FULL_S + RETRY_S))


def test_a_leader_that_has_room_again_stays():
    replica = led()
    replica.room(0.0, is_full=True)
    replica.room(1.0, is_full=False)
    assert not of(WriteRow, replica.flush(FULL_S))


@pytest.mark.parametrize("row", [without_lost(ROW, {3}), new_row((1,), EPOCHS, 1, ROW.level)])
def test_a_leader_without_whom_too_few_are_in_sync_goes_on_with_a_full_disk(row):
    replica = led(row)
    replica.room(0.0, is_full=True)
    writes = of(WriteRow, replica.flush(FULL_S))
    assert all(one.change.row.leader == 1 for one in writes)
    assert replica.is_leading
    replica.row_seen(ROW, 41, FULL_S)
    assert of(WriteRow, replica.flush(FULL_S + RETRY_S))[0].change.row.leader == NOBODY


def given_way() -> tuple[ClusterReplica, ReplicaSet]:
    """A replica that gave way for want of room to node 2, and the row of that."""
    replica = led()
    replica.linked(2, 0.0)
    replica.room(0.0, is_full=True)
    change = of(WriteRow, replica.flush(FULL_S))[0].change
    replica.row_written(change, RowOutcome.DONE, 41, FULL_S)
    row = with_leader(change.row, 2, 12)
    replica.row_seen(row, 42, FULL_S)
    return replica, row


def test_a_replica_that_gave_way_for_want_of_room_is_in_sync_only_when_there_is_room():
    replica, _row = given_way()
    assert [one.observer for one in of(OpenFeed, replica.flush(FULL_S))] == [True]
    replica.room(FULL_S, is_full=True)
    assert not replica.flush(FULL_S)
    replica.room(FULL_S, is_full=False)
    assert [one.observer for one in of(OpenFeed, replica.flush(FULL_S))] == [False]
    replica.room(FULL_S, is_full=True)
    assert not replica.flush(FULL_S), "it leads nothing: as any follower whose disk is full"


def test_a_replica_without_room_that_counts_copies_as_one_that_does():
    replica, row = given_way()
    replica.flush(FULL_S)
    replica.row_seen(with_member(row, 1, 11), 43, FULL_S)
    assert [one.observer for one in of(OpenFeed, replica.flush(FULL_S))] == [False]
    assert not replica.flush(FULL_S)
    replica.row_seen(row, 44, FULL_S)
    assert [one.observer for one in of(OpenFeed, replica.flush(FULL_S))] == [True]


def test_a_leader_without_room_does_not_give_way_to_one_that_lost_records():
    replica = led(msgspec.structs.replace(ROW, min_insync=1))
    frame = OpenFeed(1, KEY, ROW.epoch, 0, 0, -1)
    assert replica.leader is not None
    replica.leader.high_watermark = 1
    replica.take(2, 12, frame, 0.0)
    replica.room(0.0, is_full=True)
    changes = [one.change.row for one in of(WriteRow, replica.flush(FULL_S))]
    assert [row.isr.keys() for row in changes if row.leader == NOBODY] == [{3}]


def test_a_leader_whose_heirs_are_all_draining_goes_on_with_a_full_disk():
    replica = led()
    draining = {n: msgspec.structs.replace(NODES[n], draining=n != 1) for n in NODES}
    replica.nodes_seen(draining, 0.0)
    replica.room(0.0, is_full=True)
    assert not [w for w in of(WriteRow, replica.flush(FULL_S)) if w.change.row.leader == NOBODY]


def test_nobody_leads_while_its_log_is_being_cut():
    log = filled(1, 1, 3)
    replica = machine(log)
    replica.linked(2, 0.0)
    replica.row_seen(with_leader(ROW, 2, 12), 40, 0.0)
    feed = of(OpenFeed, replica.flush(0.0))[0].feed
    replica.take(2, 12, Diverge(feed, 2, 1, 2), 0.0)
    assert of(CutLog, replica.flush(0.0))
    replica.row_seen(with_leader(with_leader(ROW, 2, 12), 1, 11), 41, 0.0)
    assert not of(Lead, replica.flush(0.0))
    replica.cut(0.0)
    assert of(Lead, replica.flush(0.0))
