"""Sessions that are behind travel together: one visit of a batch serves all that need it.

Rules:
- A session with one exact filter knows its next places from the topic index. Every other session,
  and every batch that the kernel cannot read as it is, is read alone (`session.catch_up`).
- The sessions of a partition are served in laps over the log, in the order of the offsets. A
  session that comes with an offset that the lap has passed waits for the next lap. So each session
  gets its messages in order, and the number of visits does not depend on the number of sessions.
- The convoy has a fan-out of its own, which only the sessions follow that have come to these
  places: nobody gets a message that it is past already.
- After each share of a lap others have a turn. Before that, everything is written, and each
  session's position is up to date.
- While sessions keep coming, the next share waits for them, for a time that depends on what a share
  costs. A session that comes alone does not wait.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from onelog.base.errors import OnelogError
from onelog.base.ids import Offset
from onelog.broker import Cold, LiveSource, Reading, SharedRead
from onelog.kernel import MqttFanout, MqttOutput, deliver_places, topic_hash
from onelog.protocols.mqtt.delivery import delivery_properties

if TYPE_CHECKING:
    from onelog.protocols.mqtt.hub import Hub
    from onelog.protocols.mqtt.session import MqttSession

AHEAD_RECORDS: Final = 256
"""Places that a session looks up at a time."""
STRETCH_OFFSETS: Final = 65_536
"""Offsets of a partition that are looked at together."""
SHARE_RECORDS: Final = 8192
"""Messages, about, that are handed out before others have a turn."""
SHARE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of the log that are read before others have a turn."""
LOOK_S: Final = 0.002
"""While sessions keep coming: how long nobody came before those who wait are served."""
GATHER_TIMES: Final = 4
"""The same, at most: so many times as long as the last share took. To wait costs no more then than
to go over the log again for each who comes."""
GATHER_S: Final = 0.1
"""The same, at most."""
CALL_BYTES: Final = 8 * 1024 * 1024
"""Bytes, about, that one call hands out (I8)."""


class Rider:
    """A session on its way through a partition."""

    __slots__ = (
        "hash", "key", "next", "number", "offsets", "output", "position", "reach", "reading",
        "session", "topic",
    )  # fmt: skip

    def __init__(
        self, session: MqttSession, reading: Reading, offsets: list[Offset], reach: Offset
    ) -> None:
        self.session = session
        self.output = session.output
        self.reading = reading
        self.offsets = offsets
        self.reach = reach
        """The offsets are all of its places below this one."""
        self.number = 0
        """How many of them it has passed."""
        self.next = offsets[0]
        self.position: int = reading.position(0)
        self.key = reading.sources.sources[0].key
        self.topic = reading.filters[0].encode()
        self.hash = topic_hash(self.topic)

    def __lt__(self, other: Rider) -> bool:
        return self.next < other.next

    @property
    def may_go_on(self) -> bool:
        """Whether its session still wants what comes next."""
        session = self.session
        connection = session.connection
        return (
            session.ride is self
            and connection is not None
            and not connection.is_slow
            and not session.is_saving
            and not self.output.live
        )

    def pass_by(self, reached: int, reach: int) -> bool:
        """It has everything below `reached`, as far as places are known (`reach`). Returns whether
        known places are left."""
        self.position = max(self.position, min(reached, reach))
        self.number = bisect_left(self.offsets, self.position, self.number)
        if self.number == len(self.offsets):
            if reached > self.offsets[-1]:  # between its last place and `reach` there is nothing
                self.position = max(self.position, self.reach)
            return False
        self.next = self.offsets[self.number]
        return True


class ConvoyLane:
    """The riders of one partition."""

    def __init__(self, convoy: Convoy, key: tuple[str, int]) -> None:
        self._convoy = convoy
        self._key = key
        self._lap: list[Rider] = []
        """A heap of those that are served in this lap."""
        self._later: list[Rider] = []
        self._hand = 0
        """The offset that the lap has come to."""
        self._left_bytes = self._left_records = 0
        """How much of the share is left."""
        self._changed: dict[Rider, bool] = {}
        """Riders that were served in this share, and whether they have to leave."""
        self._alone: list[Rider] = []
        """Riders whose next place only their session itself can read."""

    def add(self, rider: Rider) -> None:
        """A session joins."""
        # Once somebody waits for the next lap, nobody joins this one, so that it ends.
        if rider.next >= self._hand and not self._later:
            heappush(self._lap, rider)
        else:
            self._later.append(rider)

    def run(self) -> bool:
        """Serve a share. Returns whether riders are left."""
        source = self._convoy.hub.live.find(self._key)
        self._left_bytes, self._left_records = SHARE_BYTES, SHARE_RECORDS
        try:
            if source is None:  # the stream is gone
                self._alone += (*self._lap, *self._later)
                self._lap, self._later = [], []
            while source is not None and self._left_bytes > 0 and self._left_records > 0:
                if not self._lap:
                    if not self._later:
                        break
                    self._lap, self._later = self._later, []
                    heapify(self._lap)
                self._travel(source)
        finally:
            self._finish()
        return bool(self._lap or self._later)

    def _travel(self, source: LiveSource) -> None:
        """Go over a stretch of the log with everybody who has a place in it."""
        lap, end = self._lap, self._lap[0].next + STRETCH_OFFSETS
        stretch, apart = Stretch(), []
        while lap and lap[0].next < end:
            rider = heappop(lap)
            if not rider.may_go_on:
                self._changed[rider] = True
            elif not stretch.add(rider, end):
                apart.append(rider)
        for rider in apart:
            heappush(lap, rider)
        if not stretch.riders:
            return
        stretch.reached = end
        try:
            self._visit(source, stretch, stretch.places())
        except BaseException:
            self._alone += stretch.riders
            raise
        finally:
            for rider in stretch.riders:
                rider.output.live = False
        self._hand = stretch.reached
        for rider in stretch.riders:
            self._move(rider, stretch)

    def _visit(self, source: LiveSource, stretch: Stretch, wanted: list[int]) -> None:
        """Hand out the records at these places, batch by batch, as far as the share goes."""
        convoy, at = self._convoy, 0
        fanout, now_ms = convoy.fanout, convoy.hub.clock.now_ms()
        while at < len(wanted):
            if self._left_bytes <= 0 or self._left_records <= 0:
                stretch.reached = wanted[at]
                return
            try:
                read = convoy.read(source, Offset(wanted[at]))
            except (Cold, OnelogError):
                read = None
            if read is None or not read.is_plain:
                stretch.reached = wanted[at]
                stretch.blocked = wanted[at] if read is None else int(read.infos[-1].last_offset)
                return
            upto = stretch.activate(wanted, at, read)
            failed, _touched, fallen = deliver_places(
                fanout, read.data, wanted[at:upto], source.number, now_ms
            )
            stretch.fallen.update(fallen)
            self._left_bytes -= len(read.data)
            self._left_records -= stretch.copies(upto - at)
            if failed is not None:
                stretch.reached = stretch.blocked = failed
                return
            at = upto

    def _move(self, rider: Rider, stretch: Stretch) -> None:
        fallen = stretch.fallen.get(rider.output)
        if fallen is not None:
            rider.pass_by(fallen, fallen)
            self._changed[rider] = True
        elif not rider.pass_by(stretch.reached, stretch.reach[rider.hash]):
            self._changed[rider] = True
        elif rider.next <= stretch.blocked:
            self._alone.append(rider)
        else:
            self._changed[rider] = False
            heappush(self._lap, rider)

    def _finish(self) -> None:
        """Write everything, and let those go that are done."""
        convoy = self._convoy
        changed, self._changed = self._changed, {}
        alone, self._alone = self._alone, []
        for rider, leaves in changed.items():
            if rider.session.ride is rider:
                then = rider.session.catch_up if leaves else None
                convoy.hub.isolated(rider.output, convoy.rode, rider, then)
        for rider in alone:
            if rider.session.ride is rider:
                act = rider.session.catch_up_alone
                convoy.hub.isolated(rider.output, convoy.rode, rider, act)

    def give_up(self) -> None:
        """A fault of ours: every session reads alone."""
        self._alone += (*self._changed, *self._lap, *self._later)
        self._changed, self._lap, self._later = {}, [], []
        self._finish()


class Stretch:
    """A part of the log, the riders that have places in it, and what became of them."""

    __slots__ = ("_sleeping", "blocked", "fallen", "first", "reach", "reached", "riders", "wanted")

    def __init__(self) -> None:
        self.riders: list[Rider] = []
        self.wanted: list[int] = []
        self.first: dict[int, int] = {}
        """The first place by the hash of the topic, which is what the index knows."""
        self.reach: dict[int, int] = {}
        """The offset below which all places are known, by that hash."""
        self._sleeping: list[Rider] = []
        """Riders that are ahead of another one of their topic: they must not get its places."""
        self.fallen: dict[MqttOutput, int] = {}
        self.reached = 0
        self.blocked = -1
        """Whoever has its next place here, or before it, has to read alone."""

    def add(self, rider: Rider, end: int) -> bool:
        """Take somebody along; in the order of their next places.

        False: another one of its topic may have places before it that nobody has looked up.
        """
        reach = self.reach.get(rider.hash)
        if reach is not None and rider.position > reach:
            return False
        self.reach[rider.hash] = max(reach or 0, rider.reach)
        self.riders.append(rider)
        first = self.first.setdefault(rider.hash, rider.next)
        if first == rider.next:
            rider.output.live = True
        else:
            self._sleeping.append(rider)
        offsets, number = rider.offsets, rider.number
        self.wanted += offsets[number : bisect_left(offsets, end, number)]
        return True

    def places(self) -> list[int]:
        """All places, each once."""
        if len(self.riders) == len(self.first):
            self.wanted.sort()
            return self.wanted
        return sorted(set(self.wanted))

    def copies(self, places: int) -> int:
        """About how many messages so many places are."""
        return places * len(self.riders) // len(self.first)

    def activate(self, wanted: list[int], at: int, read: SharedRead) -> int:
        """Wake the riders whose places come next. Returns up to where all of them are awake."""
        sleeping = self._sleeping
        while sleeping and sleeping[0].next <= wanted[at]:
            sleeping.pop(0).output.live = True
        end = int(read.infos[-1].last_offset) + 1
        if sleeping:
            end = min(end, sleeping[0].next)
        upto = bisect_left(wanted, end, at)
        # Of a batch for many, a part is handed out at a time.
        record_bytes = max(1, len(read.data) // max(read.infos[0].count, 1))
        most = CALL_BYTES // (record_bytes * max(1, self.copies(1)))
        return min(upto, at + max(1, most))


class Convoy:
    """All sessions of one hub that are served together."""

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.fanout = MqttFanout(delivery_properties, hub.may_have)
        self._lanes: dict[tuple[str, int], ConvoyLane] = {}
        self._runs = False
        self._came = False
        """Whether somebody joined since the last look."""
        self._patient_until_s = 0.0
        self._counted = 0

    def take(self, session: MqttSession, reading: Reading) -> bool:
        """Let a session ride, if it can; False: it has to read alone."""
        row = session.subscriptions.get(reading.filters[0])
        if row is None or row.since or (row.qos > 1 and session.is_kept):
            return False  # QoS 2 of a kept session is saved first
        if self.hub.broker.traces is not None:
            return False
        found = reading.places_ahead(AHEAD_RECORDS)
        if found is None:
            return False
        source, offsets, reach = found
        if not offsets:
            reading.seek(0, reach)
            return False
        rider = session.ride = Rider(session, reading, offsets, reach)
        no_local = session.client_id.encode() if row.no_local else b""
        self.fanout.subscribe(
            rider.topic, rider.output, row.qos, no_local, row.retain_as_published, row.identifier
        )
        lane = self._lanes.get(source.key)
        if lane is None:
            lane = self._lanes[source.key] = ConvoyLane(self, source.key)
        lane.add(rider)
        if self._runs:
            self._came = True
        else:
            self._run_soon()
        return True

    def leave(self, rider: Rider) -> None:
        """The session reads no more, or elsewhere. Its lane forgets it when it meets it."""
        rider.session.ride = None
        self.fanout.unsubscribe(rider.topic, rider.output)

    def forget_plans(self) -> None:
        """Rights may have changed."""
        self.fanout.forget_plans()

    def read(self, source: LiveSource, offset: Offset) -> SharedRead | None:
        """The batch with an offset; or Cold."""
        return self.hub.broker.cursors.batch_now(source.as_source, offset)

    def rode(self, rider: Rider, then: Callable[[], None] | None) -> None:
        """A share is over: note how far a session is, and send what it got.

        It leaves if something else comes `then`.
        """
        index = rider.reading.find(*rider.key)  # streams may have changed on the way
        if index is not None:
            rider.reading.seek(index, rider.position)
        if then is not None:
            self.leave(rider)
        rider.session.write_out()
        if then is not None:
            then()

    def _run_soon(self) -> None:
        self._runs = True
        self.hub.loop.call_soon(self._look)

    def _look(self) -> None:
        """Serve everybody. When others have just come, more may follow: they all go together."""
        begun_s = self.hub.clock.monotonic()
        came, self._came = self._came, False
        if came and begun_s < self._patient_until_s:
            self.hub.loop.call_later(LOOK_S, self._look)
            return
        self._run()
        self._came = False  # those that were served and go on are not new
        ended_s = self.hub.clock.monotonic()
        patience_s = max(LOOK_S, min(GATHER_TIMES * (ended_s - begun_s), GATHER_S))
        self._patient_until_s = ended_s + patience_s

    def _run(self) -> None:
        self._runs = False
        lanes = list(self._lanes.items())
        for key, lane in lanes:
            if not self._isolated(lane):
                del self._lanes[key]
        self.hub.counters.caught_up += self.fanout.delivered - self._counted
        self._counted = self.fanout.delivered
        if self._lanes and not self._runs:
            self._run_soon()

    def _isolated(self, lane: ConvoyLane) -> bool:
        try:
            return lane.run()
        except Exception as error:  # noqa: BLE001 - the sessions of other partitions go on
            self.hub.broker.troubles.note("mqtt-session", "convoy", error)
            lane.give_up()
            return False
