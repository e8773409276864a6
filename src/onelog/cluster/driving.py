"""The rim of one replica: it carries out what the machine asks, on a real partition.

Rules:
- Outputs are carried out once per pass of the loop, in their order. What takes longer (a cut, a
  trim, a read of cold bytes, a call of the store) is a task; its end is an input of the machine.
- The partition asks the machine for its high watermark (`Progress`), and the machine asks the
  partition for its ends. Neither polls.
- An error of the log makes the replica damaged: it leaves the in-sync set, and copies anew.
- What a leader reads to bring a copy up to date is checked, because a copy refuses damaged batches,
  and asks for them again for ever. What is fed live was written a moment ago, and is not checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Protocol

from onelog.base.errors import (
    CorruptBatch,
    Fenced,
    InvalidRequest,
    OnelogError,
    PartitionCorrupt,
    StorageError,
    StorageFull,
    Unavailable,
)
from onelog.base.ids import Offset
from onelog.cluster.follower import REOPEN_S
from onelog.cluster.frames import CloseReason, FeedBatches, FeedFrame, FeedLane
from onelog.cluster.leader import ReplicaLeader
from onelog.cluster.membership import NEVER, RowOutcome
from onelog.cluster.outputs import (
    AppendCopy,
    CopyAnew,
    CutLog,
    Follow,
    Lead,
    ReadPiece,
    ReadRow,
    ReplicaOutput,
    SendFrame,
    StopReplica,
    TakeMark,
    WriteRow,
)
from onelog.cluster.port import PartitionPort
from onelog.cluster.replica import ClusterReplica
from onelog.cluster.row_store import RowStore
from onelog.cluster.rows import PartitionChange
from onelog.kernel import BatchInfo, scan_batches
from onelog.log.partition import Partition
from onelog.log.progress import Role, Told
from onelog.storage.engine import Buffer, Cold, in_place


class ReplicaLinks(Protocol):
    """The links to other nodes."""

    def send(self, node: int, lane: FeedLane, frame: FeedFrame) -> None:
        """Send a frame; without a link it is lost."""
        ...


class _Leading:
    """The progress of a led partition: an end that moved wakes the driver."""

    def __init__(self, driver: ReplicaDriver) -> None:
        self._driver = driver

    def moved(self, written: Offset, durable: Offset) -> Offset:
        """See `Progress`."""
        self._driver.wake()
        leader = self._driver.replica.leader
        return Offset(0) if leader is None else leader.moved(written, durable)

    @property
    def is_settled(self) -> bool:
        """See `Progress`."""
        leader = self._driver.replica.leader
        return leader is not None and leader.is_settled

    @property
    def is_fresh(self) -> bool:
        """See `Progress`."""
        return self._driver.is_fresh

    def let_compact(self, upto: Offset) -> None:
        """See `Progress`."""
        leader = self._driver.replica.leader
        if leader is not None:
            leader.let_compact(upto)
            self._driver.wake()


class _Copying(Told):
    """The progress of a copy: an end that moved is acknowledged."""

    __slots__ = ("_driver",)

    def __init__(self, driver: ReplicaDriver) -> None:
        super().__init__()
        self._driver = driver
        if driver.replica.follower.observer:
            # Whoever follows the end here gets all that is copied: somebody asked for it.
            self.first = Offset(0)

    def moved(self, written: Offset, durable: Offset) -> Offset:
        """See `Progress`."""
        self._driver.wake()
        return super().moved(written, durable)


class ReplicaDriver:
    """One replica of one partition on this node."""

    def __init__(
        self,
        port: PartitionPort,
        replica: ClusterReplica,
        links: ReplicaLinks,
        rows: RowStore,
        remake: Callable[[], Awaitable[Partition]],
    ) -> None:
        """`remake` drops all that the partition holds, and opens it empty."""
        self.on_role: Callable[[], None] = lambda: None
        """Called when this node begins or ceases to lead."""
        self.on_copied: Callable[[], None] = lambda: None
        """Called when a copy has all that its leader showed when the copy began."""
        self.holds: Callable[[ReplicaLeader], bool] = lambda _leader: True
        """Whether what is led may be shown (`Tenure`)."""
        self.port = port
        self.replica = replica
        self._links = links
        self._rows = rows
        self._remake = remake
        self._loop = asyncio.get_running_loop()
        self._is_awake = self._is_closed = self._is_trimming = self._is_refused = False
        self.is_leading = False
        """Whether the partition takes records here, as far as `on_role` was told."""
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._take(port.partition)

    @property
    def partition(self) -> Partition:
        """The partition as it is now: a copy that begins anew is another one."""
        return self.port.partition

    @property
    def is_fresh(self) -> bool:
        """Whether this node leads it, and nobody else can have for long."""
        leader = self.replica.leader
        return leader is not None and self.holds(leader)

    def _take(self, partition: Partition) -> None:
        self.port.partition = partition
        partition.replica.on_stop = self._stopped
        self._follow()

    def _stopped(self) -> None:
        """Somebody found damage, perhaps a reader: a leader without traffic has no other turn."""
        if isinstance(self.partition.stopped, StorageError):
            self.wake()

    @property
    def has_copied(self) -> bool:
        """Whether it has all that its leader showed when the copy began, and runs."""
        return self.partition.stopped is None and (self.is_leading or self.port.has_copied)

    # -- passes

    def wake(self) -> None:
        """Something happened: take a turn in the next pass of the loop."""
        if not self._is_awake and not self._is_closed:
            self._is_awake = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        if self._is_closed:
            return
        replica, now = self.replica, self._loop.time()
        replica.room(now, is_full=self.partition.shared.room.is_full)
        if replica.leader is not None and self.partition.stopped is None:
            self._admit(replica.leader)
            self.partition.moved()  # what the others acknowledged; it calls `wake` in vain
        elif self._lacks_epoch:
            self._follow()
        self._is_awake = False
        if self.partition.stopped is not None and not self._is_broken:
            replica.damaged(now)
        outputs, self._is_refused = replica.flush(now), False
        for output in outputs:
            self._carry_out(output)
        ack = replica.follower.acknowledge() if replica.leader is None else None
        if ack is not None:
            self._carry_out(ack)
        if outputs and not self._is_refused:
            self.wake()
        self._set_timer(min(replica.due, now + REOPEN_S) if self._is_refused else replica.due)

    def _admit(self, leader: ReplicaLeader) -> None:
        """Take records while they can be answered, and ask nobody while there is nobody to ask."""
        partition = self.partition
        if leader.takes_records:
            partition.refusal = None
        elif partition.refusal is None:
            row = leader.members.row
            partition.refusal = Unavailable(
                f"{partition.place} has {len(row.isr)} replicas in sync, and {row.min_insync} have"
                " to be: nothing was written"
            )
        is_alone = leader.is_alone
        if is_alone != (partition.progress is None):
            partition.watch(None if is_alone else _Leading(self))

    @property
    def _lacks_epoch(self) -> bool:
        """Whether a copy follows in an epoch that its partition does not know yet: readers of the
        copy name it."""
        replica, partition = self.replica, self.partition
        if replica.leader is not None or partition.stopped is not None:
            return False
        may_change = partition.jobs.held is None and not replica.follower.is_cutting
        return may_change and replica.row.epoch > partition.leader_epoch

    @property
    def _is_broken(self) -> bool:
        follower = self.replica.follower
        return follower.is_damaged or follower.is_cutting

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if due == NEVER else self._loop.call_at(due, self.wake)

    def _carry_out(self, output: ReplicaOutput) -> None:
        match output:
            case SendFrame(node, lane, frame):
                self._links.send(node, lane, frame)
            case AppendCopy(frame):
                self._append(frame)
            case TakeMark():
                self._take_mark(output)
            case ReadPiece():
                self._read(output)
            case WriteRow(change):
                self._start(self._write_row(change))
            case ReadRow():
                self._start(self._read_row())
            case CutLog(end):
                self._start(self._cut(end))
            case CopyAnew(start):
                self._start(self._begin_anew(start))
            case Lead(epoch):
                self._lead(epoch)
            case Follow():
                self._follow()
            case StopReplica(why):
                self.partition.stop(PartitionCorrupt(f"{self.partition.place}: {why}"))

    def _lead(self, epoch: int) -> None:
        lost_in = self.replica.row.recover
        try:
            self.partition.replica.become(Role.LEADER, epoch, _Leading(self), lost_in)
        except OnelogError as error:
            # It is elected until the row says otherwise: the next turns try again.
            self._is_refused = True
            self.partition.troubles.note("replica", self.partition.place, error)
        else:
            self.replica.lead(self._loop.time())
            self._tell_role(is_leading=True)

    def _tell_role(self, *, is_leading: bool) -> None:
        if self.is_leading != is_leading:
            self.is_leading = is_leading
            self.on_role()

    def _follow(self) -> None:
        if self.partition.stopped is None:
            role = Role.OBSERVER if self.replica.follower.observer else Role.FOLLOWER
            row = self.replica.row
            epoch = max(row.epoch, self.partition.leader_epoch)
            self.partition.replica.become(role, epoch, _Copying(self), row.recover)
        self._tell_role(is_leading=False)

    # -- copies

    def _append(self, frame: FeedBatches) -> None:
        follower, now = self.replica.follower, self._loop.time()
        if not follower.accepts(frame, now):
            return
        try:
            data = frame.data if isinstance(frame.data, bytes | bytearray) else bytes(frame.data)
            mark = Offset(frame.high_watermark)
            self.partition.replica.append_copy(data, frame.leader_epoch, mark)
        except StorageFull:
            follower.refuse(CloseReason.OVER, now)  # there may be room later
        except (CorruptBatch, Fenced, InvalidRequest):
            follower.refuse(CloseReason.GAP, now)
        except OnelogError:
            self.wake()  # the log stopped: the next turn sees it
        else:
            self._take_bounds(frame)

    def _take_mark(self, mark: TakeMark) -> None:
        if self.partition.stopped is None and self.partition.jobs.held is None:
            epoch = self.partition.leader_epoch
            self.partition.replica.append_copy(b"", epoch, Offset(mark.high_watermark))
            self._take_bounds(mark)

    def _take_bounds(self, told: FeedBatches | TakeMark) -> None:
        progress = self.partition.progress
        if progress is not None:
            progress.let_compact(Offset(told.compact_bound))
        self._trim(told.start)
        if not self.port.has_copied and self.port.told(told.high_watermark):
            self.on_copied()

    def _trim(self, start: int) -> None:
        if start > self.partition.start_offset and not self._is_trimming:
            self._is_trimming = True
            self._start(self._trim_to(Offset(min(start, self.partition.high_watermark))))

    async def _trim_to(self, start: Offset) -> None:
        try:
            if start > self.partition.start_offset:
                await self.partition.trim(start)
        finally:
            self._is_trimming = False

    async def _cut(self, end: int) -> None:
        try:
            await self.partition.replica.truncate(Offset(end))
        finally:
            self.replica.cut(self._loop.time())  # a cut that failed stopped the log, or is repeated

    async def _begin_anew(self, start: int) -> None:
        try:
            fresh = await self._remake()
        except OnelogError as error:
            self.partition.troubles.note("replica", self.partition.place, error)
            self._loop.call_later(REOPEN_S, self._carry_out, CopyAnew(start))
            return
        self.port.begin_anew(fresh, start)
        self._take(fresh)
        self.replica.cut(self._loop.time())

    # -- feeds

    def _read(self, want: ReadPiece) -> None:
        log = self.partition.log
        read = partial(log.read, Offset(want.offset), want.bytes_max, Offset(want.upto))
        try:
            data = read()
        except Cold:
            self._start(self._read_cold(want, read))
        except PartitionCorrupt as error:
            self._found_damage(error)
        except OnelogError:
            self._hand_out(want, b"")  # trimmed meanwhile: the machine closes the feed
        else:
            self._hand_out(want, data)

    async def _read_cold(self, want: ReadPiece, read: Callable[[], memoryview]) -> None:
        log, found = self.partition.log, b""

        def work() -> None:
            nonlocal found
            found = bytes(in_place(log, read))

        try:
            await self.partition.jobs.run(self.partition.shared.syncer.chores, work)
        except PartitionCorrupt as error:
            self._found_damage(error)
        finally:
            self._hand_out(want, found)

    def _hand_out(self, want: ReadPiece, data: Buffer) -> None:
        leader = self.replica.leader
        if leader is None:
            return
        try:
            is_old = leader.is_catching_up(want.node, want.feed)
            infos = scan_batches(data, 0, is_old) if len(data) else []
            if is_old:
                _check_offsets(infos, want.offset, self.port.end)
        except CorruptBatch as error:
            self._found_damage(self.partition.stop_damaged(Offset(want.offset), error))
            return
        end = infos[-1].last_offset + 1 if infos else want.offset
        sent = leader.piece(want.node, want.feed, data, end)
        if sent is not None:
            self._links.send(sent.node, sent.lane, sent.frame)
        if sent is not None or want.offset < self.port.start:
            self.wake()

    def _found_damage(self, error: PartitionCorrupt) -> None:
        """This log cannot be copied: somebody else leads, and this replica copies anew."""
        self.partition.troubles.note("replica", self.partition.place, error)
        self.partition.stop(error)

    # -- rows

    async def _write_row(self, change: PartitionChange) -> None:
        outcome, revision = RowOutcome.UNKNOWN, 0
        try:
            outcome, revision = await self._rows.write(change)
        finally:
            self.replica.row_written(change, outcome, revision, self._loop.time())

    async def _read_row(self) -> None:
        try:
            row, revision = await self._rows.read(self.replica.partition)
        except OnelogError:
            self.replica.read_failed(self._loop.time())
        else:
            self.replica.row_read(row, revision, self._loop.time())

    # -- tasks

    def _start(self, work: Coroutine[None, None, None]) -> None:
        if self._is_closed:
            work.close()
            return
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            error = task.exception()
            if error is not None and not isinstance(error, OnelogError):
                self.partition.troubles.note("replica", self.partition.place, error)
        self.wake()

    async def close(self) -> None:
        """Do nothing more; the partition stays open."""
        self._is_closed = True
        self._tell_role(is_leading=False)
        if self._timer is not None:
            self._timer.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _check_offsets(infos: Sequence[BatchInfo], start: int, end: int) -> None:
    """Raise CorruptBatch where batches do not follow each other from `start` to `end`: no checksum
    covers the offset of a batch."""
    at = start
    for info in infos:
        if info.last_offset < at or info.last_offset >= end:
            raise CorruptBatch(f"a batch of the offset {info.base_offset} lies at the offset {at}")
        at = info.last_offset + 1
