"""Publishes to partitions that other nodes lead: in order, answered, sent again.

It knows no link and no partition: leaders, answers and the time come in, batches and outcomes go
out (`ForwardPort`).

Rules:
- A partition has one way (`ForwardWay`). Its batches are sent one behind the other without waiting,
  and none overtakes: what was refused or is in doubt is sent again before anything later, and only
  when no answer of the attempt before is due any more.
- This node's own lead is a leader like any other: while older batches are under way, newer ones of
  the same partition go behind them, also when they could be appended here at once.
- A batch that was sent and not answered is in doubt. Its publisher says whether it is sent again
  (`doubted`): then it may be stored twice, unless it has a producer's sequence. What was in doubt
  once is never reported as refused: an earlier try may have written it.
- What no leader answers by `FORWARD_S` ends: refused if it was never sent, else with Timeout.
- Bytes are bounded by the node that leads (`is_full`); the publishers look, and wait for `on_room`.
- Nothing is sent in the middle of an event: a publisher that gets its answer may publish at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from onelog.base.errors import (
    Closed,
    DuplicateSequence,
    NotLeader,
    OnelogError,
    StorageFull,
    Unavailable,
    without_frames,
)
from onelog.base.ids import Offset
from onelog.base.limits import FORWARD_WINDOW_BYTES
from onelog.cluster.forward_frames import ForwardBatch, Forwarded, ForwardOutcome
from onelog.cluster.forward_ways import (
    Done,
    Doubted,
    Forward,
    ForwardPeer,
    ForwardPort,
    ForwardWay,
    Leader,
    left_open,
    refusal_of,
)
from onelog.cluster.rows import NOBODY
from onelog.observe.troubles import Troubles
from onelog.storage.engine import PartitionKey

FORWARD_S: Final = 15.0
"""How long a batch may take, with all tries: longer than an election takes."""
GRACE_S: Final = 1.0
"""How long a former leader may take to answer what it had; then it is in doubt."""
PAUSES_S: Final = (0.01, 0.5)
"""Between two tries at a node that should lead by what is known here, and says that it does not."""
ANSWER: Final = "forward-answer"
"""Incidents: a publisher raised when it got its answer."""
_NO_OFFSET: Final = Offset(-1)
_AGAIN: Final = (ForwardOutcome.NOT_LEADER, ForwardOutcome.AFTER_REFUSED)


class Forwarder:
    """All forwards of one node."""

    def __init__(self, node: int, port: ForwardPort, troubles: Troubles) -> None:
        self._node = node
        self._port = port
        self._troubles = troubles
        self._ways: dict[PartitionKey, ForwardWay] = {}
        self._peers: dict[int, ForwardPeer] = {}
        self._numbers: dict[int, tuple[Forward, int]] = {}
        """Batches that are sent, and where; also those whose publisher waits no more."""
        self._due: dict[int, Forward] = {}
        """Batches whose publishers wait, oldest first."""
        self._held: dict[int, int] = {}
        """Bytes of them, by the node that leads."""
        self._stirred: dict[ForwardWay, None] = {}
        """Ways to look at when the event is over."""
        self._depth = 0
        self._timer: Any = None
        self._order = self._number = self._attempt = 0
        self._is_closed = False
        self.on_full: list[Callable[[], None]] = []
        """Called when a node has no room any more."""
        self.on_room: list[Callable[[], None]] = []
        """Called when a node that had no room has some again."""
        self.sent = self.repeated = 0

    # -- for publishers

    def takes(self, key: PartitionKey, refusal: OnelogError) -> bool:
        """Whether a partition that refuses appends here may be written through its leader."""
        if self._is_closed:
            return False
        leader = self._port.leader(key)
        if leader is None:
            way = self._ways.get(key)
            return isinstance(refusal, NotLeader) and not (way is not None and way.is_offline)
        if leader[0] == self._node:  # elected a moment ago, or refusing for another reason
            return isinstance(refusal, NotLeader)
        return self._port.accepts(leader[0]) is not False

    def is_busy(self, key: PartitionKey) -> bool:
        """Whether batches of a partition are under way, so that the next one goes behind them."""
        way = self._ways.get(key)
        return way is not None and not way.is_idle

    def is_full(self, key: PartitionKey) -> bool:
        """Whether so much waits for the leader of a partition that publishers should wait, too."""
        return self._held.get(self._home(key), 0) >= FORWARD_WINDOW_BYTES

    def put(
        self,
        key: PartitionKey,
        data: bytes,
        done: Done,
        doubted: Doubted,
        *,
        is_doubtful: bool = False,
    ) -> None:
        """Have a sealed batch written where its partition is led.

        `done` is called once, perhaps at once: with the offset of its first record when it is
        visible, or with the error. `doubted` is asked when a try may have written it: True sends it
        again. `is_doubtful`: it may have been written before.
        """
        way = self._ways.get(key)
        if way is None:
            way = self._ways[key] = ForwardWay(key)
        self._order += 1
        one = Forward(way, self._order, data, self._port.now() + FORWARD_S, done, doubted)
        one.is_doubtful = is_doubtful
        if self._is_closed:
            stopped = Closed("this node stops: nothing was written")
            error = left_open(way, "this node stops") if is_doubtful else stopped
            self._tell(one, _NO_OFFSET, error)
            return
        way.waiting.append(one)
        self._due[one.order] = one
        self._count(way, one.size)
        self._wait_for_the_oldest()
        self._stirred[way] = None
        self._send_stirred()

    # -- events

    def look(self) -> None:
        """Leaders or nodes changed."""
        for way in list(self._ways.values()):
            leader = self._port.leader(way.key)
            if leader is not None:
                way.is_offline = False
            if way.is_idle:
                if not way.is_offline:
                    del self._ways[way.key]
                continue
            _cancel(way.pause)
            way.pause = None
            self._settle(way)
            if way.sent and leader not in (None, way.leader) and way.grace is None:
                due = self._port.now() + GRACE_S
                way.grace = self._port.call_at(due, self._grace_over, way, way.leader)
            self._stirred[way] = None
        self._send_stirred()

    def linked(self, node: int) -> None:
        """A new link to a node stands: of what went over the one before, nothing is known."""
        self.unlinked(node)
        self.look()

    def unlinked(self, node: int) -> None:
        """The link to a node is gone: what it has not answered is in doubt."""
        gone = [number for number, (_one, at) in self._numbers.items() if at == node]
        self._lose(gone, f"the link to node {node} broke")
        peer = self._peers.pop(node, None)
        if peer is not None:
            self._stirred |= peer.starved
        self._send_stirred()

    def _grace_over(self, way: ForwardWay, former: Leader) -> None:
        way.grace = None
        if way.leader == former and self._port.leader(way.key) != former:
            self._lose(list(way.sent), f"node {former[0]} leads no more, and does not answer")
            self._send_stirred()

    def _lose(self, numbers: list[int], why: str) -> None:
        """No answer to these batches counts any more."""
        self._depth += 1
        for number in numbers:
            one, _node = self._forget(number)
            one.way.is_refused = True
            self._stirred[one.way] = None
            if not one.is_over:
                self._doubt(one, why)
        self._depth -= 1

    def _forget(self, number: int) -> tuple[Forward, ForwardPeer]:
        one, node = self._numbers.pop(number)
        del one.way.sent[number]
        if not one.way.sent:
            _cancel(one.way.grace)
            one.way.grace = None
        peer = self._peers[node]
        peer.count -= 1
        peer.size -= one.size
        return one, peer

    def answered(self, node: int, answer: Forwarded) -> None:
        """A node answers one batch; an answer to an earlier try says nothing."""
        found = self._numbers.get(answer.number)
        if found is None or found[1] != node:
            return
        self._depth += 1
        one, peer = self._forget(answer.number)
        way = one.way
        if answer.outcome is not ForwardOutcome.DONE:
            way.is_refused = True
        if not one.is_over:
            self._take(one, answer)
        self._stirred[way] = None
        if peer.starved and peer.has_room:
            self._stirred |= peer.starved
            peer.starved.clear()
        self._depth -= 1
        self._send_stirred()

    def _take(self, one: Forward, answer: Forwarded) -> None:
        way, outcome = one.way, answer.outcome
        if outcome is ForwardOutcome.DONE:
            way.pause_s = 0.0
            self._end(one, Offset(answer.base), None)
        elif outcome is ForwardOutcome.UNKNOWN:
            self._doubt(one, "its leader changed, or failed")
        elif outcome is ForwardOutcome.AFTER_REFUSED and way.full is not None:
            self._refuse(one, way.full)
        elif outcome in _AGAIN:
            way.back.append(one)
            if outcome is ForwardOutcome.NOT_LEADER and self._port.leader(way.key) == way.leader:
                self._pause(way)
        else:
            error = refusal_of(way, outcome)
            self._refuse(one, error)
            if isinstance(error, StorageFull):
                # Publishers try again themselves, in their order: nothing may come before.
                way.full = error
                self._refuse_all(way, error)

    def _refuse_all(self, way: ForwardWay, error: OnelogError) -> None:
        """Refuse what is not sent."""
        refused = [*way.back, *way.waiting]
        way.back.clear()
        way.waiting.clear()
        for one in refused:
            self._refuse(one, error)

    def _refuse(self, one: Forward, error: OnelogError) -> None:
        """This try wrote nothing. An earlier one may have."""
        if one.is_doubtful and not isinstance(error, DuplicateSequence):
            error = left_open(one.way, str(error))
        self._end(one, _NO_OFFSET, error)

    def _doubt(self, one: Forward, why: str) -> None:
        """A try may have written it: send it again if its publisher wants that."""
        one.is_doubtful = True
        error = left_open(one.way, why)
        try:
            again = one.doubted(error)
        except Exception as failure:  # noqa: BLE001 - isolated: the others go on
            self._troubles.note(ANSWER, one.way.place, failure)
            again = False
        if again and not self._is_closed:
            one.way.back.append(one)
        else:
            self._end(one, _NO_OFFSET, error)

    # -- sending

    def _send_stirred(self) -> None:
        if self._depth:
            return
        self._depth += 1
        try:
            while self._stirred:
                way = next(iter(self._stirred))
                del self._stirred[way]
                self._go(way)
        finally:
            self._depth -= 1

    def _go(self, way: ForwardWay) -> None:
        """Send what may be sent now."""
        if way.is_refused:
            if way.sent:
                return
            self._begin_anew(way)
        while way.waiting:
            leader = self._port.leader(way.key)
            if leader is None or (way.sent and way.leader != leader):
                return  # a change of leaders, an answer or the end of its grace comes back here
            if way.pause is not None:
                if way.leader == leader:
                    return
                _cancel(way.pause)
                way.pause = None
            if not self._send(way, leader):
                return

    def _begin_anew(self, way: ForwardWay) -> None:
        way.is_refused, way.full = False, None
        self._attempt += 1
        way.attempt = self._attempt
        way.back.sort(key=lambda one: -one.order)
        way.waiting.extendleft(way.back)
        self.repeated += len(way.back)
        way.back.clear()

    def _send(self, way: ForwardWay, leader: Leader) -> bool:
        """Send the first batch that waits; False: not now."""
        node, epoch = leader
        accepts = node == self._node or self._port.accepts(node)
        if accepts is None:
            return False
        if not accepts:
            words = f"node {node} leads {way.place} and takes no forwarded messages: upgrade it"
            self._refuse_all(way, Unavailable(words))
            return False
        peer = self._peers.setdefault(node, ForwardPeer())
        if not peer.has_room:
            peer.starved[way] = None
            return False
        one, number = way.waiting[0], self._next_number()
        if not self._port.send(node, ForwardBatch(number, way.attempt, way.key, epoch, one.data)):
            return False
        way.waiting.popleft()
        way.leader = leader
        way.sent[number] = one
        self._numbers[number] = one, node
        peer.count += 1
        peer.size += one.size
        self.sent += 1
        return True

    def _next_number(self) -> int:
        while True:
            self._number = self._number % 0xFFFF_FFFF + 1
            if self._number not in self._numbers:
                return self._number

    def _pause(self, way: ForwardWay) -> None:
        """The node that should lead says that it does not: it, or this one, learns of it soon."""
        least, most = PAUSES_S
        if way.pause is None:
            way.pause_s = min(most, way.pause_s * 2) or least
            due = self._port.now() + way.pause_s
            way.pause = self._port.call_at(due, self._pause_over, way)

    def _pause_over(self, way: ForwardWay) -> None:
        way.pause = None
        self._stirred[way] = None
        self._send_stirred()

    # -- answers and bounds

    def _end(self, one: Forward, base: Offset, error: OnelogError | None) -> None:
        """The publisher gets its answer; the caller has taken the batch out of its way."""
        one.is_over = True
        one.data = b""
        del self._due[one.order]
        self._count(one.way, -one.size)
        self._tell(one, base, error)

    def _tell(self, one: Forward, base: Offset, error: OnelogError | None) -> None:
        try:
            one.done(base, None if error is None else without_frames(error))
        except Exception as failure:  # noqa: BLE001 - isolated: the others are answered
            self._troubles.note(ANSWER, one.way.place, failure)

    def _home(self, key: PartitionKey) -> int:
        leader = self._port.leader(key)
        return NOBODY if leader is None else leader[0]

    def _count(self, way: ForwardWay, size: int) -> None:
        if not way.size:
            way.held_at = self._home(way.key)
        way.size += size
        self._hold(way.held_at, size)

    def _settle(self, way: ForwardWay) -> None:
        """Count the bytes of a way to the node that leads now."""
        home = self._home(way.key)
        if home != way.held_at:
            before, way.held_at = way.held_at, home
            self._hold(home, way.size)
            self._hold(before, -way.size)

    def _hold(self, node: int, size: int) -> None:
        was = self._held.get(node, 0)
        now = was + size
        if now:
            self._held[node] = now
        else:
            self._held.pop(node, None)
        if was < FORWARD_WINDOW_BYTES <= now:
            self._troubles.tell(ANSWER, self.on_full)
        elif now < FORWARD_WINDOW_BYTES // 2 <= was:
            self._troubles.tell(ANSWER, self.on_room)

    # -- the deadline

    def _wait_for_the_oldest(self) -> None:
        if self._timer is None and self._due:
            oldest = next(iter(self._due.values()))
            self._timer = self._port.call_at(oldest.due, self._look_at_the_oldest)

    def _look_at_the_oldest(self) -> None:
        self._timer = None
        self._depth += 1
        now = self._port.now()
        while self._due and (one := next(iter(self._due.values()))).due <= now:
            self._give_up(one)
        self._depth -= 1
        self._wait_for_the_oldest()
        self._send_stirred()

    def _give_up(self, one: Forward) -> None:
        way = one.way
        if one in way.waiting:
            way.waiting.remove(one)
        elif one in way.back:
            way.back.remove(one)
        else:  # sent: what is behind it still waits for its answer, and its publisher does not
            one.is_doubtful = True
        leader = self._port.leader(way.key)
        if one.is_doubtful:
            error: OnelogError = left_open(way, f"no answer within {FORWARD_S:g} s")
        elif leader is None:
            way.is_offline = True
            error = NotLeader(f"{way.place} has no leader: nothing was written")
        else:
            words = f"node {leader[0]}, which leads {way.place}, took nothing"
            error = Unavailable(f"{words} within {FORWARD_S:g} s")
        self._end(one, _NO_OFFSET, error)

    def close(self) -> None:
        """Take and send nothing more; everybody who waits gets an answer."""
        self._is_closed = True
        self._depth += 1  # for good: nothing is sent any more
        _cancel(self._timer)
        for way in self._ways.values():
            _cancel(way.pause)
            _cancel(way.grace)
        for one, _node in self._numbers.values():
            one.is_doubtful = True
        for one in list(self._due.values()):
            self._refuse(one, Closed("this node stops: nothing was written"))


def _cancel(timer: Any) -> None:
    if timer is not None:
        timer.cancel()
