"""The quotas of the metadata store, and the connections that are bound by them.

Rules:
- Quotas are a projection of the store (`metadata/projection.py`): a change applies to every open
  connection as soon as the command that made it returns.
- For each limit, one quota of users and clients counts: the most specific, in the order of
  `_PRECEDENCE`, which is Kafka's. A listener's quota counts beside it, for all connections of the
  listener together. The longest wait holds.
- Whoever a quota names shares it: `user:ann` is one bucket for all connections of ann, the default
  `user` one for each user, `user:ann,client` one for each client id of ann.
- A bucket that nobody uses is kept for a while, so that connecting anew does not fill it. Their
  number is bounded (I8).
- A row that cannot be read bounds nobody, and stands as a trouble.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final
from weakref import WeakValueDictionary

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import Conflict, InvalidRequest, LimitExceeded, NotFound, OnelogError
from onelog.base.limits import QUOTAS_MAX
from onelog.metadata.projection import Change, Projection
from onelog.metadata.store import Entry, MetadataStore
from onelog.net.gate import host_key
from onelog.net.throttle import ThrottleCounters, Throttled
from onelog.observe import Sample, Troubles
from onelog.security.quotas.bucket import TokenBucket
from onelog.security.quotas.entities import (
    COUNTS,
    DEFAULT,
    Limit,
    QuotaEntity,
    QuotaRow,
    check_entity,
    check_limits,
)
from onelog.security.quotas.seat import Buckets, QuotaSeat, RateExceeded, Tally

PREFIX: Final = "quotas/"
UNREADABLE: Final = "quota"
"""Standing: a quota cannot be read, so it bounds nobody."""
LISTENER: Final = "quota-listener"
"""Incidents: a connection raised when quotas changed."""
RESTING_MAX: Final = 16_384
"""Buckets without a connection that are remembered."""
BURST_S: Final = 1.0
"""A bucket holds what its rate gives in so many seconds, unless the configuration says more."""
PATIENCE_S: Final = 30.0
_TRIES: Final = 10

_PRECEDENCE: Final = (
    ("name", "name"),
    ("name", "default"),
    ("name", None),
    ("default", "name"),
    ("default", "default"),
    ("default", None),
    (None, "name"),
    (None, "default"),
)
"""The user and the client of a quota, the one that counts first."""
_WITHOUT_CLIENT: Final = tuple(row for row in _PRECEDENCE if row[1] is None)

Key = tuple[Limit, str, str | None, str | None]
"""A limit, the kind of entity, and the names that share it."""
Limits = Mapping[Limit, float]


class ClientQuotas:
    """Made by `open`, ended by `close`."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        troubles: Troubles,
        *,
        burst_s: float = BURST_S,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.now = clock.monotonic
        self.patience_s = patience_s
        """How long a client may be held back, where its protocol has an error for more."""
        self._troubles = troubles
        self._burst_s = burst_s
        self._rows = Projection(store, PREFIX, _decode, troubles, self._changed)
        self._limits: dict[tuple[str | None, str | None], Limits] = {}
        """What a user and a client may do."""
        self._of_listeners: dict[str, Limits] = {}
        self._of_addresses: dict[str, Limits] = {}
        self._seats: set[QuotaSeat] = set()
        self._buckets: dict[Key, TokenBucket] = {}
        self._resting: OrderedDict[Key, TokenBucket] = OrderedDict()
        self._tallies: WeakValueDictionary[Key, Tally] = WeakValueDictionary()
        self._unreadable: frozenset[str] = frozenset()
        self.refusals: dict[Limit, int] = dict.fromkeys(COUNTS, 0) | {Limit.CONNECTS: 0}
        self._counters: dict[str, ThrottleCounters] = {}

    async def open(self) -> None:
        """Load the quotas and follow their changes."""
        await self._rows.open()

    async def close(self) -> None:
        """Follow no more; the store stays open. Idempotent."""
        await self._rows.close()

    # -- connections

    def counters(self, protocol: str) -> ThrottleCounters:
        """Where the throttles of a protocol count."""
        return self._counters.setdefault(protocol, ThrottleCounters())

    def join(
        self,
        owner: Throttled,
        protocol: str,
        user: str,
        client: str,
        listener: str,
        *,
        patience_s: float = float("inf"),
    ) -> QuotaSeat:
        """Count a connection; `patience_s` is for how long it may be held back at once.

        Raises QuotaExceeded when there are too many connections.
        """
        seat = QuotaSeat(self, owner, self.counters(protocol), user, client, listener)
        seat.patience_s = patience_s
        if self._limits or self._of_listeners:
            self.resolve(seat)
        self._seats.add(seat)
        try:
            seat.take(Limit.CONNECTIONS)
        except OnelogError:
            seat.leave()
            raise
        return seat

    def charge(
        self, protocol: str, user: str, listener: str, messages: int, size_bytes: int
    ) -> None:
        """Count publishes of a request that has no connection which could be held back.

        Raises RateExceeded, and counts nothing, while a quota is in debt.
        """
        if not self._limits and not self._of_listeners:
            return
        counters = self.counters(protocol)
        seat = QuotaSeat(self, Throttled(), counters, user, "", listener)
        self.resolve(seat)
        try:
            taken = ((Limit.PUBLISH_MESSAGES, messages), (Limit.PUBLISH_BYTES, size_bytes))
            rows = [(row, count) for limit, count in taken for row in seat.buckets.get(limit, ())]
            now = self.now()
            wait_s = max((row.debit(0, now) for row, _count in rows), default=0.0)
            if wait_s > 0:
                counters.holds += 1
                raise RateExceeded(wait_s)
            for row, count in rows:
                row.debit(count, now)
        finally:
            self._let_go(seat.buckets)

    def left(self, seat: QuotaSeat) -> None:
        """A connection is gone."""
        self._seats.discard(seat)
        self._let_go(seat.buckets)
        seat.settle({}, {})

    def admits(self, host: str) -> bool:
        """Whether an address may connect once more."""
        if not self._of_addresses:
            return True
        address = host_key(host)
        limits = self._of_addresses.get(address) or self._of_addresses.get(DEFAULT)
        if limits is None:
            return True
        key: Key = (Limit.CONNECTS, "ip", address, None)
        bucket = self._bucket(key, limits[Limit.CONNECTS])
        self._rest(bucket)
        if bucket.takes(self.now()):
            return True
        self.refusals[Limit.CONNECTS] += 1
        return False

    def counted(
        self, limit: Limit, user: str, client: str | None, listener: str | None
    ) -> list[tuple[QuotaEntity, int]]:
        """Who share the bounds of a number that is counted elsewhere, and how many they may have
        together. None is not known, so that no quota of a client or a listener counts."""
        return [
            (
                QuotaEntity(listener=first)
                if kind == "listener"
                else QuotaEntity(user=first, client=second),
                int(value),
            )
            for (found, kind, first, second), value in self._found(user, client, listener)
            if found is limit
        ]

    # -- what a connection takes from

    def resolve(self, seat: QuotaSeat) -> None:
        """Let a seat take from the quotas that count for it."""
        before = seat.buckets
        buckets: dict[Limit, list[TokenBucket]] = {}
        tallies: dict[Limit, list[tuple[Tally, int]]] = {}
        for key, value in self._found(seat.user, seat.client, seat.listener):
            limit = key[0]
            if limit in COUNTS:
                tally = self._tallies.get(key) or self._tallies.setdefault(key, Tally())
                tallies.setdefault(limit, []).append((tally, int(value)))
            else:
                bucket = self._bucket(key, value)
                bucket.sharers += 1
                buckets.setdefault(limit, []).append(bucket)
        self._let_go(before)
        seat.settle(buckets, tallies)

    def _found(
        self, name: str, client_id: str | None, listener: str | None
    ) -> list[tuple[Key, float]]:
        """The limits that count for connections of a user, client and listener, as far as these are
        known, and who shares each."""
        found: dict[Limit, tuple[Key, float]] = {}
        ranks = _PRECEDENCE if client_id is not None else _WITHOUT_CLIENT
        for of_user, of_client in ranks if self._limits else ():
            user = name if of_user == "name" else of_user and DEFAULT
            client = client_id if of_client == "name" else of_client and DEFAULT
            for limit, value in self._limits.get((user, client), {}).items():
                if limit not in found:
                    sharers = of_user and name, of_client and client_id
                    found[limit] = (limit, "client", *sharers), value
        rows = list(found.values())
        if self._of_listeners and listener is not None:
            limits = {**self._of_listeners.get(DEFAULT, {}), **self._of_listeners.get(listener, {})}
            rows += [
                ((limit, "listener", listener, None), value) for limit, value in limits.items()
            ]
        return rows

    def _bucket(self, key: Key, rate: float) -> TokenBucket:
        bucket = self._buckets.get(key)
        if bucket is None or bucket.rate != rate:
            self._resting.pop(key, None)
            bucket = self._buckets[key] = TokenBucket(rate, self._burst_s, self.now(), key)
        elif not bucket.sharers:
            self._resting.pop(key, None)
        return bucket

    def _let_go(self, held: Mapping[Limit, Buckets]) -> None:
        for buckets in held.values():
            for bucket in buckets:
                bucket.sharers -= 1
                if not bucket.sharers:
                    self._rest(bucket)

    def _rest(self, bucket: TokenBucket) -> None:
        """Nobody takes from a bucket now: remember it, and forget the one that rests longest."""
        if self._buckets.get(bucket.key) is not bucket:
            return  # its rate changed, and another took its place
        self._resting[bucket.key] = bucket
        self._resting.move_to_end(bucket.key)
        if len(self._resting) > RESTING_MAX:
            del self._buckets[self._resting.popitem(last=False)[0]]

    # -- the rows

    @property
    def rows(self) -> tuple[QuotaRow, ...]:
        """Every quota that can be read, by its text."""
        found = (row for _key, row in self._rows.rows() if row is not None)
        return tuple(sorted(found, key=lambda row: row.entity.text))

    @property
    def unreadable(self) -> tuple[str, ...]:
        """The names of quotas that cannot be read."""
        return tuple(sorted(self._unreadable))

    def find(self, entity: QuotaEntity) -> QuotaRow | None:
        """The quota of exactly this entity."""
        row = self._rows.get(PREFIX + entity.text)
        return None if row is None else row.value

    async def replace(self, entity: QuotaEntity, limits: Mapping[str, float]) -> QuotaRow:
        """Set the limits of an entity, and no others. Raises InvalidName, InvalidRequest."""
        if not limits:
            raise InvalidRequest("a quota has at least one limit; remove the quota instead")
        row = await self.change(entity, limits, frozenset(Limit) - limits.keys(), others=True)
        assert row is not None, "it has a limit"
        return row

    async def change(
        self,
        entity: QuotaEntity,
        limits: Mapping[str, float],
        drop: Iterable[str] = (),
        *,
        others: bool = False,
    ) -> QuotaRow | None:
        """Set limits and drop others, durably; both apply when this returns.

        A limit to drop has to be one that the entity could have, unless `others` is set.
        Returns the quota, or None when no limit is left of it. Raises InvalidName, InvalidRequest.
        """
        entity = check_entity(entity)
        new = check_limits(entity, limits)
        gone = set(drop) if others else set(check_limits(entity, dict.fromkeys(drop, 1)))
        key = PREFIX + entity.text
        for _try in range(_TRIES):
            row = self._rows.get(key)
            before = {} if row is None or row.value is None else row.value.limits
            after = {limit: value for limit, value in before.items() if limit not in gone} | new
            if row is None and not after:
                return None
            if row is None and len(self._rows) >= QUOTAS_MAX:
                raise LimitExceeded(f"there are {QUOTAS_MAX} quotas already; remove one first")
            made = QuotaRow(entity=entity, limits=after)
            try:
                if after:
                    await self._rows.put(key, msgspec.json.encode(made))
                    return made
                await self._rows.delete(key)
            except Conflict:  # another changed the same quota meanwhile
                continue
            return None
        raise Conflict(f"other commands change the quota of {entity.text[:80]} all the time")

    async def remove(self, name: str) -> None:
        """Take a quota away by its text, also one that cannot be read. Raises NotFound."""
        while self._rows.get(PREFIX + name) is not None:
            try:
                await self._rows.delete(PREFIX + name)
            except Conflict:
                continue
            return
        raise NotFound(f"there is no quota for {name[:80]!r}; `onelog quota list` shows all quotas")

    # -- what the store says

    def _changed(self, changes: Sequence[Change[QuotaRow | None]]) -> None:
        del changes
        self._limits, self._of_listeners, self._of_addresses = {}, {}, {}
        unreadable = set()
        for key, row in self._rows.rows():
            if row is None:
                unreadable.add(key.removeprefix(PREFIX))
            elif row.entity.listener is not None:
                self._of_listeners[row.entity.listener] = row.limits
            elif row.entity.ip is not None:
                self._of_addresses[row.entity.ip and host_key(row.entity.ip)] = row.limits
            else:
                self._limits[row.entity.user, row.entity.client] = row.limits
        for name in self._unreadable - unreadable:
            self._troubles.clear(UNREADABLE, name)
        for name in unreadable:
            self._troubles.stand(
                UNREADABLE,
                name,
                f"the quota {name} cannot be read and bounds nobody; `onelog quota remove` removes"
                " it",
                blocks=False,
            )
        self._unreadable = frozenset(unreadable)
        self._troubles.tell(LISTENER, [seat.renew for seat in self._seats])

    # -- numbers

    def samples(self) -> Iterable[Sample]:
        """Numbers for the metrics."""
        yield Sample("onelog_quotas", "Quotas that are set.", "gauge", len(self._rows))
        for protocol, counters in self._counters.items():
            label = (("protocol", protocol),)
            yield Sample(
                "onelog_throttled_seconds_total",
                "Time for which connections were not read because of a quota.",
                "counter",
                counters.seconds,
                label,
            )
            yield Sample(
                "onelog_throttled_total",
                "Times that a connection was held back by a quota.",
                "counter",
                counters.holds,
                label,
            )
        for limit, count in self.refusals.items():
            yield Sample(
                "onelog_quota_refusals_total",
                "Things refused because a quota of their number is used up.",
                "counter",
                count,
                (("limit", limit.value),),
            )


def _decode(entry: Entry) -> QuotaRow | None:
    """The quota of an entry; None: it cannot be read."""
    try:
        row = msgspec.json.decode(entry.value, type=QuotaRow)
        limits = {limit.value: value for limit, value in row.limits.items()}
        return QuotaRow(entity=check_entity(row.entity), limits=check_limits(row.entity, limits))
    except (msgspec.MsgspecError, OnelogError):
        return None
