"""What a partition is to its other replicas: its role, the copies it takes, and how it is cut.

Rules:
- The role and the leader's epoch are given from outside; the epoch only grows.
- A copy has the leader's offsets and epochs, byte for byte. Gaps are offsets that the leader
  thinned or compacted away.
- A cut that would take what all replicas had is damage, and stops the partition (I9).
- With replicas the engine keeps the high watermark, at most once a second and at the close, so that
  the next start knows it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from onelog.base.errors import (
    CorruptBatch,
    Fenced,
    InvalidRequest,
    NotLeader,
    PartitionCorrupt,
    PartitionStopped,
    Timeout,
    again,
)
from onelog.base.ids import Epoch, Offset
from onelog.kernel import BatchInfo, scan_batches
from onelog.log.epochs import EpochHistory
from onelog.log.producers import Producers
from onelog.log.progress import Progress, Role, Told
from onelog.log.replay import replay_state
from onelog.storage.engine import PartitionLog, in_place

if TYPE_CHECKING:
    from onelog.log.partition import Partition

KEEP_S: Final = 1.0
"""The high watermark is kept at most this often."""


class Replica:
    """One partition among its replicas, for the code that moves batches between nodes."""

    __slots__ = ("_keeping", "_partition", "lost_in", "on_stop", "role")

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self.role = Role.LEADER
        self.lost_in = 0
        """The last epoch that may have begun with a loss of what readers had seen; 0: none did."""
        self.on_stop: Callable[[], None] = _nothing
        """Called when the partition stops, whoever found the damage."""
        self._keeping = False

    def become(
        self, role: Role, epoch: int, progress: Progress | None = None, lost_in: int = 0
    ) -> None:
        """Take a role in `epoch`.

        A leader's `progress` knows its replicas (None: there are none); any other role gets a
        `Told`. A caller that waits for a record of a former leader gets Timeout: the next leader
        decides whether the record stays. `lost_in` is the last epoch that may have begun with a
        loss.
        """
        partition, leads = self._partition, role is Role.LEADER
        self._check(epoch)
        if not leads and progress is None:
            progress = Told()
        if not leads and not isinstance(progress, Told):
            raise InvalidRequest(f"{partition.place} does not lead: its progress must be a Told")
        was, self.role = self.role, role
        self.lost_in = max(self.lost_in, lost_in)
        partition.leader_epoch = Epoch(epoch)
        partition.watch(progress)
        if leads:
            partition.refusal = None
            partition.note_epoch(partition.end_offset)
        else:
            # It may have led without writing: the next leader may send records of an older epoch.
            partition.epochs.truncate(partition.end_offset)
            partition.refusal = NotLeader(
                f"{partition.place} has its leader elsewhere in epoch {epoch}"
            )
        if was is Role.LEADER and not leads:
            lost = Timeout(
                f"{partition.place} is led elsewhere now; whether the record stays is open"
            )
            visible = partition.visible
            visible.fail_writers(visible.high_watermark, partition.end_offset, lost)
        partition.moved()

    def _check(self, epoch: int) -> None:
        partition = self._partition
        if partition.stopped is not None:
            raise again(partition.stopped)
        if epoch < partition.leader_epoch:
            raise Fenced(
                f"epoch {epoch} of {partition.place} is over: {partition.leader_epoch} is known"
            )
        partition.jobs.refuse_if_held()

    def append_copy(self, data: bytes | bytearray, epoch: int, high_watermark: Offset) -> Offset:
        """Append batches as the leader of `epoch` has them; without any, only take its high
        watermark.

        Returns the new end. The CRC of each batch is checked. Offsets may leave gaps, and are never
        below the end.
        """
        partition = self._partition
        self._check(epoch)
        progress = partition.progress
        if not isinstance(progress, Told):
            raise InvalidRequest(f"{partition.place} is led here: it takes no copies")
        infos = check_copies(data, partition.end_offset, partition.epochs.latest, epoch)
        progress.tell(high_watermark)
        if infos:
            partition.append_as_is(data, infos)
        else:
            partition.moved()
        return partition.end_offset

    async def truncate(self, end: Offset) -> None:
        """As a follower: cut off what lies at and behind `end`, durably."""
        partition, log = self._partition, self._partition.log
        self._check(partition.leader_epoch)
        if self.role is not Role.FOLLOWER:
            raise InvalidRequest(f"{partition.place}: a follower is cut, not the {self.role}")
        if end >= partition.end_offset:
            return
        place, known = partition.place, partition.visible.high_watermark
        now_ms = partition.shared.clock.now_ms()

        def done(
            result: tuple[Producers, EpochHistory] | None, error: BaseException | None
        ) -> None:
            if result is not None:
                partition.adopt_cut(*result)
            elif log.end_offset != partition.end_offset:
                why = f"{place} was cut, then {error}; restart the broker"
                partition.stop(PartitionStopped(why))

        # Threads may be working on what is cut: on a snapshot, for example.
        await partition.jobs.run_alone(
            partition.shared.syncer.chores, lambda: cut_log(place, log, end, known, now_ms), done
        )

    def moved(self, progress: Progress, durable: Offset) -> None:
        """An end moved, here or on another replica: show records that may be seen now, and keep the
        mark."""
        partition = self._partition
        end, visible = partition.end_offset, partition.visible
        before = visible.high_watermark
        visible.advance(min(progress.moved(end, durable), end))
        if visible.high_watermark > before:
            self._keep_soon()

    def _keep_soon(self) -> None:
        if not self._keeping:
            self._keeping = True
            asyncio.get_running_loop().call_later(KEEP_S, self._keep)

    def _keep(self) -> None:
        partition = self._partition
        if partition.stopped is not None:
            return
        if partition.jobs.held is not None:
            self._kept(None, None)  # later
            return
        log, offset = partition.log, partition.visible.high_watermark
        chores = partition.shared.syncer.chores
        partition.jobs.start(chores, lambda: log.keep_high_watermark(offset), self._kept)

    def _kept(self, _result: None, error: BaseException | None) -> None:
        self._keeping = False
        partition = self._partition
        # After a full disk the mark is kept when it moves next. An error that stops the log has
        # stopped the partition.
        if error is not None or partition.stopped is not None or partition.progress is None:
            return
        if partition.visible.high_watermark > partition.log.kept_high_watermark:
            self._keep_soon()


def check_copies(
    data: bytes | bytearray, end: Offset, latest_epoch: int, epoch: int
) -> list[BatchInfo]:
    """The batches that the leader of `epoch` sent, if they may follow a log that ends at `end`."""
    infos = scan_batches(data)
    for info in infos:
        if info.base_offset < end:
            raise InvalidRequest(f"a copy begins at {info.base_offset}, the log ends at {end}")
        if info.leader_epoch > epoch:
            raise CorruptBatch(f"a copy of epoch {info.leader_epoch} came in epoch {epoch}")
        if info.leader_epoch < latest_epoch:
            raise Fenced(f"a copy of epoch {info.leader_epoch} follows one of {latest_epoch}")
        end, latest_epoch = Offset(info.last_offset + 1), info.leader_epoch
    return infos


def cut_log(
    place: str, log: PartitionLog, end: Offset, high_watermark: Offset, now_ms: int
) -> tuple[Producers, EpochHistory]:
    """In a thread: cut the log at `end`. Returns what its batches now say of producers and
    epochs."""
    lands = end
    if high_watermark <= end:
        data = in_place(log, lambda: log.read(end, 1, log.end_offset))
        if data:  # only whole batches are cut
            lands = min(end, Offset(scan_batches(data, 0, False, 1)[0].base_offset))
    if lands < high_watermark:
        raise PartitionCorrupt(
            f"{place} was to be cut at {lands}, but all replicas had everything below"
            f" {high_watermark}. Copy the partition anew from its leader"
        )
    log.truncate(end)
    producers, epochs = replay_state(log, now_ms, high_watermark)
    epochs.truncate(log.end_offset)
    return producers, epochs


def _nothing() -> None:
    return None
