"""Mistakes in the machines of leaders and copies."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from onelog.cluster.follower import ReplicaFollower
from onelog.cluster.frames import AckFeed, FeedBatches, MarkFeed, OpenFeed
from onelog.cluster.leader import ReplicaLeader
from onelog.cluster.membership import Membership, RowOutcome
from onelog.cluster.outputs import CopyAnew, CutLog
from onelog.cluster.replica import ClusterReplica
from onelog.cluster.rows import PartitionChange, ReplicaSet
from tests.simulation.cluster.log import SimulatedLog

Patch = pytest.MonkeyPatch


# -- copies


def truncates_by_high_watermark(patch: Patch) -> None:
    """KIP-101: at each new epoch a copy forgets what it does not know to be everywhere."""
    honest = ReplicaFollower.row_seen

    def row_seen(copy: ReplicaFollower, row: ReplicaSet, now: float) -> None:
        epoch = copy.epoch
        honest(copy, row, now)
        if copy.epoch != epoch and copy._log.end > copy._log.high_watermark and not copy.observer:
            copy.is_cutting = True
            copy._out.append(CutLog(copy._log.high_watermark))

    patch.setattr(ReplicaFollower, "row_seen", row_seen)


def opens_without_a_comparison(patch: Patch) -> None:
    """The leader takes the end of a copy for a part of its own log."""
    honest = ReplicaLeader.opened

    def opened(
        leader: ReplicaLeader, node: int, node_epoch: int, frame: OpenFeed, now: float
    ) -> None:
        last_epoch = leader._log.last_epoch()
        if frame.end <= leader._log.end and last_epoch >= 0:
            frame = msgspec.structs.replace(frame, last_epoch=last_epoch)
        honest(leader, node, node_epoch, frame, now)

    patch.setattr(ReplicaLeader, "opened", opened)


def takes_pieces_of_a_deposed_leader(patch: Patch) -> None:
    """A copy does not look at the epoch of what comes, and goes on with the feed that it has."""
    honest = ReplicaFollower.row_seen

    def row_seen(copy: ReplicaFollower, row: ReplicaSet, now: float) -> None:
        if copy._feed is not None and row.leader != copy.node:
            copy._row = row
            copy.epoch = max(copy.epoch, row.epoch)
            return
        honest(copy, row, now)

    def take(copy: ReplicaFollower, frame: Any, now: float) -> None:
        if isinstance(frame, FeedBatches | MarkFeed):
            frame = msgspec.structs.replace(frame, leader_epoch=copy.epoch)
        taken(copy, frame, now)

    taken = ReplicaFollower.take
    patch.setattr(ReplicaFollower, "row_seen", row_seen)
    patch.setattr(ReplicaFollower, "take", take)


def says_durable_what_is_written(patch: Patch) -> None:
    honest = ReplicaFollower.acknowledge

    def acknowledge(copy: ReplicaFollower) -> Any:
        sent = honest(copy)
        if sent is not None:
            frame = msgspec.structs.replace(sent.frame, durable=sent.frame.written)
            sent = msgspec.structs.replace(sent, frame=frame)
        return sent

    patch.setattr(ReplicaFollower, "acknowledge", acknowledge)


def copies_anew_while_it_is_eligible(patch: Patch) -> None:
    """A damaged replica drops its log before the row is without it."""
    honest = ReplicaFollower._open

    def open_feed(copy: ReplicaFollower, now: float) -> None:
        if copy.is_damaged and not copy.is_cutting and copy.leader in copy._links:
            copy.is_damaged, copy._feed, copy.is_cutting = False, None, True
            copy._out.append(CopyAnew(0))
        else:
            honest(copy, now)

    patch.setattr(ReplicaFollower, "_open", open_feed)


def elects_a_damaged_replica(patch: Patch) -> None:
    """A replica that is damaged leads when it is named."""
    honest = ClusterReplica.flush

    def flush(replica: ClusterReplica, now: float) -> Any:
        if replica._is_elected and replica.follower.is_damaged:
            replica.follower.is_damaged = False
        return honest(replica, now)

    patch.setattr(ClusterReplica, "flush", flush)


def shows_what_its_leader_shows(patch: Patch) -> None:
    """A copy takes its leader's high watermark though its own log ends before it."""

    def take_mark(log: SimulatedLog, high_watermark: int, start: int) -> None:
        log.high_watermark = max(log.high_watermark, high_watermark)
        log.trim(min(start, log.high_watermark))

    patch.setattr(SimulatedLog, "take_mark", take_mark)


# -- leaders


def drops_members_by_the_last_segment(patch: Patch) -> None:
    """A member that ends before the last segment begins is taken for one that lacks tombstones."""

    def first_for(leader: ReplicaLeader, _node: int, frame: OpenFeed) -> int:
        log = leader._log
        return log.start if frame.last_epoch < 0 else max(log.start, log.gone_below)

    patch.setattr(ReplicaLeader, "_first_for", first_for)


def counts_a_replica_before_its_epochs_start(patch: Patch) -> None:
    def ready(leader: ReplicaLeader) -> dict[int, int]:
        return {
            feed.node: feed.node_epoch
            for feed in leader._feeds.values()
            if feed.node not in leader.members.row.isr
            and not feed.observer
            and leader.end_of_replica(feed.node) >= leader.high_watermark
        }

    patch.setattr(ReplicaLeader, "_ready", ready)


def counts_a_replica_that_lags(patch: Patch) -> None:
    """Any copy enters the ISR at once, and does not hold back the high watermark until it is up."""
    honest = Membership.maximal

    def ready(leader: ReplicaLeader) -> dict[int, int]:
        feeds = [feed for feed in leader._feeds.values() if not feed.observer]
        isr = leader.members.row.isr
        return {feed.node: feed.node_epoch for feed in feeds if feed.node not in isr}

    def maximal(members: Membership) -> set[int]:
        return honest(members) - members._goals.keys() | {members._node}

    patch.setattr(ReplicaLeader, "_ready", ready)
    patch.setattr(Membership, "maximal", maximal)


def answers_before_it_is_durable(patch: Patch) -> None:
    def end_of_replica(leader: ReplicaLeader, node: int) -> int:
        if node == leader.node:
            return leader._log.end
        return leader._ends.get(node, (-1, -1))[0]

    patch.setattr(ReplicaLeader, "end_of_replica", end_of_replica)


def answers_alone(patch: Patch) -> None:
    """acks=1: the leader's own end is the high watermark."""
    patch.setattr(Membership, "maximal", lambda members: {members._node})


def moves_beyond_the_pending_isr(patch: Patch) -> None:
    """Only the committed ISR holds the high watermark, not who a pending change adds (KIP-497)."""
    patch.setattr(Membership, "maximal", lambda members: {members._node, *members.row.isr})


def shrinks_before_it_is_committed(patch: Patch) -> None:
    """Who is about to leave the ISR no longer holds the high watermark."""

    def maximal(members: Membership) -> set[int]:
        row = members.row if members.pending is None else members.pending.row
        return {members._node, *row.isr}

    patch.setattr(Membership, "maximal", maximal)


def answers_with_too_few_replicas(patch: Patch) -> None:
    """The high watermark moves also below `min_insync`, with an ELR that lacks what comes then."""

    def progress(leader: ReplicaLeader) -> None:
        if not leader.is_over:
            reached = min(map(leader.end_of_replica, leader.members.maximal()))
            leader.high_watermark = max(leader.high_watermark, reached)

    patch.setattr(ReplicaLeader, "progress", progress)


def takes_unknown_for_refused(patch: Patch) -> None:
    """A change whose outcome is unknown is dropped, and another one made."""
    honest = Membership.written

    def written(
        members: Membership,
        change: PartitionChange,
        outcome: RowOutcome,
        revision: int,
        now: float,
    ) -> None:
        if outcome is RowOutcome.UNKNOWN and change is members.pending:
            members.pending, members._is_asking = None, False
        else:
            honest(members, change, outcome, revision, now)

    patch.setattr(Membership, "written", written)


def takes_unknown_for_done(patch: Patch) -> None:
    honest = Membership.written

    def written(
        members: Membership,
        change: PartitionChange,
        outcome: RowOutcome,
        revision: int,
        now: float,
    ) -> None:
        if outcome is RowOutcome.UNKNOWN and change is members.pending:
            members.row, members.pending, members._is_asking = change.row, None, False
        else:
            honest(members, change, outcome, revision, now)

    patch.setattr(Membership, "written", written)


def leads_on_in_an_epoch_of_the_process_before(patch: Patch) -> None:
    """A process that starts anew takes the row of the one before it for its own."""
    patch.setattr(
        ClusterReplica, "_is_elected", property(lambda replica: replica.row.leader == replica.node)
    )


def stays_leader_after_its_row_is_gone(patch: Patch) -> None:
    """A lease as a lock: while the own lease seems good, another row does not depose."""
    honest = ReplicaLeader.row_seen

    def row_seen(leader: ReplicaLeader, row: ReplicaSet, revision: int, now: float) -> None:
        if row.leader == leader.node:
            honest(leader, row, revision, now)

    def take_role(replica: ClusterReplica, now: float) -> None:
        if replica.leader is not None and replica.row.leader != replica.node:
            facts = replica._nodes.get(replica.node)
            if facts is not None and facts.node_epoch == replica.node_epoch:
                return
        taken(replica, now)

    taken = ClusterReplica._take_role
    patch.setattr(ReplicaLeader, "row_seen", row_seen)
    patch.setattr(ClusterReplica, "_take_role", take_role)


def credits_acknowledgements_of_old_feeds(patch: Patch) -> None:
    """A late acknowledgement counts, though the copy was cut since."""
    honest = ReplicaLeader.acked

    def acked(leader: ReplicaLeader, node: int, frame: AckFeed, now: float) -> None:
        feed = leader._feeds.get(node)
        if feed is not None:
            frame = msgspec.structs.replace(frame, feed=feed.feed, leader_epoch=leader.epoch)
            written, durable = frame.written, frame.durable
            feed.position = max(feed.position, written)
            leader._ends[node] = (written, durable)
        honest(leader, node, frame, now)

    patch.setattr(ReplicaLeader, "acked", acked)
