"""Does a leader append what nodes forward to it, and only that, and answer when it is visible?"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import StorageFull, Unavailable
from onelog.base.ids import PartitionId
from onelog.base.limits import FORWARD_WINDOW_BYTES
from onelog.cluster.forward_desk import ForwardDesk
from onelog.cluster.forward_frames import ForwardBatch, Forwarded, ForwardOutcome
from onelog.cluster.link.hello import Sender
from onelog.cluster.link.layout import LinkViolation
from onelog.kernel import BatchBuilder
from onelog.log.partition import Partition
from onelog.log.progress import Role
from onelog.log.syncer import Syncer
from onelog.observe.troubles import Troubles
from onelog.record.batch import build_batch
from onelog.storage.engine import PartitionKey
from tests.fuzz.mutation import mutate_bytes
from tests.logs import KEY, GatedLog, held, make_partition, memory_log, row

NOW_MS = 1_700_000_000_000
ONE, TWO = Sender(1, 10), Sender(2, 20)


class Fixed:
    """A leader's progress that is what the test says."""

    is_settled = True
    offset = 0

    def moved(self, written: int, durable: int) -> int:
        return self.offset


class Leader:
    """A desk over one real partition, which it leads."""

    def __init__(self, partition: Partition) -> None:
        self.partition: Partition | None = partition
        self.registered = {1, 2}
        self.answers: list[tuple[int, Forwarded]] = []
        self.soon: list[Callable[[], object]] = []
        self.troubles = Troubles(ManualClock(NOW_MS))
        self.desk = ForwardDesk(self, self.soon.append, self.troubles)
        self.number = 0

    def led(self, key: PartitionKey) -> Partition | None:
        return self.partition if key == KEY else None

    def is_registered(self, sender: Sender) -> bool:
        return sender.node in self.registered

    def answer(self, sender: Sender, answer: Forwarded) -> None:
        self.answers.append((sender.node, answer))

    def take(self, sender: Sender, data: bytes, attempt: int = 1, **changes) -> int:
        self.number += 1
        said = {"partition": KEY, "leader_epoch": 0} | changes
        self.desk.take(sender, ForwardBatch(self.number, attempt, data=data, **said))
        return self.number

    def turn(self) -> list[tuple[int, ForwardOutcome, int]]:
        """The pass ends. What was answered: number, outcome, base offset."""
        for call in self.soon:
            call()
        self.soon.clear()
        found = [(one.number, one.outcome, one.base) for _node, one in self.answers]
        self.answers.clear()
        return found


def batch_of(*values: bytes, producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    builder = BatchBuilder(True)
    for value in values:
        builder.add(b"t", b"t", value, (), NOW_MS)
    return builder.seal(0, 0, 0, *producer)


@pytest.fixture
def leader(syncer: Syncer) -> Leader:
    clock = ManualClock(NOW_MS)
    return Leader(make_partition(memory_log(clock), syncer, clock))


def values(leader: Leader) -> list[bytes | None]:
    return [one.value for one in held(leader.partition.log)]


async def test_all_batches_of_a_pass_are_one_append_in_their_order(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    appends = []
    real = Partition.append_checked
    monkeypatch.setattr(
        Partition, "append_checked", lambda self, data: appends.append(1) or real(self, data)
    )
    leader.take(ONE, batch_of(b"a", b"b"))
    leader.take(TWO, batch_of(b"c"))
    leader.take(ONE, batch_of(b"d"))
    assert values(leader) == []
    done = ForwardOutcome.DONE
    assert leader.turn() == [(1, done, 0), (2, done, 2), (3, done, 3)]
    assert values(leader) == [b"a", b"b", b"c", b"d"]
    assert appends == [1]


async def test_the_answer_waits_for_the_high_watermark(leader: Leader) -> None:
    progress = Fixed()
    leader.partition.replica.become(Role.LEADER, 3, progress)
    leader.take(ONE, batch_of(b"a"), leader_epoch=3)
    assert leader.turn() == []
    progress.offset = 1
    leader.partition.moved()
    assert leader.turn() == [(1, ForwardOutcome.DONE, 0)]


async def test_a_deposed_leader_says_that_it_does_not_know(leader: Leader) -> None:
    leader.partition.replica.become(Role.LEADER, 3, Fixed())
    leader.take(ONE, batch_of(b"a"), leader_epoch=3)
    assert leader.turn() == []
    leader.partition.replica.become(Role.FOLLOWER, 4)
    leader.take(ONE, batch_of(b"b"), leader_epoch=3)
    assert leader.turn() == [(1, ForwardOutcome.UNKNOWN, 0), (2, ForwardOutcome.AFTER_REFUSED, 0)]


@pytest.mark.parametrize("changes", [{"leader_epoch": 1}, {"partition": PartitionKey("s-2", 0)}])
async def test_another_epoch_or_partition_is_refused_until_the_next_attempt(
    leader: Leader, changes
) -> None:
    leader.take(ONE, batch_of(b"a"), 1, **changes)
    leader.take(ONE, batch_of(b"b"), 1, **changes)
    leader.take(ONE, batch_of(b"c"), 2, **changes)
    refused, after = ForwardOutcome.NOT_LEADER, ForwardOutcome.AFTER_REFUSED
    assert leader.turn() == [(1, refused, 0), (2, after, 0), (3, refused, 0)]
    assert values(leader) == []


async def test_what_follows_a_refusal_waits_for_the_next_attempt_and_others_do_not(
    leader: Leader,
) -> None:
    leader.take(ONE, batch_of(b"a"), leader_epoch=9)
    leader.take(ONE, batch_of(b"b"))
    leader.take(TWO, batch_of(b"c"))
    leader.turn()
    leader.take(ONE, batch_of(b"d"), attempt=2)
    assert leader.turn() == [(4, ForwardOutcome.DONE, 1)]
    assert values(leader) == [b"c", b"d"]


async def test_a_node_that_is_not_registered_is_refused(leader: Leader) -> None:
    leader.registered.clear()
    leader.take(ONE, batch_of(b"a"))
    assert leader.turn() == [(1, ForwardOutcome.NOT_LEADER, 0)]
    assert values(leader) == []


async def test_too_few_replicas_and_a_full_disk_are_said_as_such(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader.partition.refusal = Unavailable("too few")
    leader.take(ONE, batch_of(b"a"))
    assert leader.turn() == [(1, ForwardOutcome.TOO_FEW, 0)]
    leader.partition.refusal = None

    def is_full(*_args) -> None:
        raise StorageFull("no room")

    monkeypatch.setattr(leader.partition.log, "append", is_full, raising=False)
    leader.take(ONE, batch_of(b"b"), attempt=2)
    assert leader.turn() == [(2, ForwardOutcome.FULL, 0)]


async def test_a_producers_batch_is_written_once_and_found_again(leader: Leader) -> None:
    for sequence in range(8):
        leader.take(ONE, batch_of(b"%d" % sequence, producer=(5, 0, sequence)))
    leader.take(TWO, batch_of(b"7", producer=(5, 0, 7)))
    leader.take(TWO, batch_of(b"0", producer=(5, 0, 0)))  # its place is forgotten
    leader.take(ONE, batch_of(b"9", producer=(5, 0, 9)))
    done = [(n + 1, ForwardOutcome.DONE, n) for n in range(8)]
    assert leader.turn() == [
        *done,
        (9, ForwardOutcome.DONE, 7),
        (10, ForwardOutcome.DUPLICATE, 0),
        (11, ForwardOutcome.OUT_OF_ORDER, 0),
    ]
    assert values(leader) == [b"%d" % n for n in range(8)]


async def test_a_stream_with_append_times_is_stamped_by_the_leader(
    leader: Leader,
) -> None:
    leader.partition.stamps = True
    builder = BatchBuilder(True)
    builder.add(b"t", b"t", b"a", (), 1)
    leader.take(ONE, builder.seal(0, 0))
    assert leader.turn() == [(1, ForwardOutcome.DONE, 0)]
    assert held(leader.partition.log)[0].timestamp_ms == NOW_MS


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"\0" * 61,
        batch_of(b"a")[:-1],
        batch_of(b"a") + b"\0",
        batch_of(b"a") + batch_of(b"b"),
        build_batch([row(None, b"a")], codec=1),
        build_batch([row(None, b"a")], attributes=0x10),
        build_batch([row(None, b"a")], attributes=0x20),
    ],
)
async def test_bytes_that_no_node_forwards_are_refused_and_noted(
    leader: Leader, data: bytes
) -> None:
    leader.take(ONE, data)
    assert leader.turn() == [(1, ForwardOutcome.INVALID, 0)]
    assert leader.partition.end_offset == 0
    assert [one.kind for one in leader.troubles.rows()] == ["forward-append"]


async def test_a_changed_batch_is_never_appended(leader: Leader) -> None:
    chance = random.Random(7)
    good = batch_of(*(b"value %d" % n for n in range(5)))
    for attempt in range(1, 400):
        data = bytearray(good)
        mutate_bytes(chance, data)
        if bytes(data[16:]) == good[16:] or not data:  # offset and epoch are the leader's
            continue
        leader.take(ONE, bytes(data), attempt)
        assert [outcome for _n, outcome, _b in leader.turn()] == [ForwardOutcome.INVALID]
    assert leader.partition.end_offset == 0


async def test_a_node_that_forwards_without_end_loses_its_link(leader: Leader) -> None:
    leader.partition.replica.become(Role.LEADER, 0, Fixed())
    data = batch_of(bytes(4 * 1024 * 1024))
    taken = 0
    with pytest.raises(LinkViolation, match="not answered"):
        for _ in range(100):
            leader.take(ONE, data)
            leader.turn()
            taken += len(data)
    assert taken < 2 * FORWARD_WINDOW_BYTES + 2 * len(data)
    leader.take(TWO, batch_of(b"another node goes on"))


async def test_nothing_is_answered_over_a_link_that_is_gone(leader: Leader) -> None:
    progress = Fixed()
    leader.partition.replica.become(Role.LEADER, 0, progress)
    leader.take(ONE, batch_of(b"a"))
    leader.turn()
    leader.desk.forget(1)
    leader.take(ONE, batch_of(b"b"))
    leader.turn()
    progress.offset = 2
    leader.partition.moved()
    assert leader.turn() == [(2, ForwardOutcome.DONE, 1)]


async def test_a_write_that_raises_is_open_and_keeps_no_other_partition_from_its_turn(
    syncer: Syncer, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(NOW_MS)
    log = GatedLog(memory_log(clock))
    leader = Leader(make_partition(log, syncer, clock))

    def breaks(*_args) -> None:
        raise RuntimeError("a fault of ours")

    log.append = breaks
    leader.take(ONE, batch_of(b"a"), partition=PartitionKey("s-2", PartitionId(0)))
    leader.take(ONE, batch_of(b"b"))
    assert leader.turn() == [(1, ForwardOutcome.NOT_LEADER, 0), (2, ForwardOutcome.UNKNOWN, 0)]
