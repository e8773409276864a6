"""Groups under any order of events: clients that come, go, stall and retry, a disk that is slow or
fails, and restarts. What must hold at every step, and what must hold once it is quiet again."""

from __future__ import annotations

from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from onelog.base.clock import ManualClock
from onelog.config.kafka import KafkaGroups
from onelog.protocols.kafka.errors import ErrorCode
from onelog.protocols.kafka.groups.answers import JoinAnswer, Joining, Leaving, Syncing
from onelog.protocols.kafka.groups.group import Group
from onelog.protocols.kafka.groups.kept import KeptGroup
from onelog.protocols.kafka.groups.states import State

E = ErrorCode
SETTINGS = KafkaGroups()
OFFERS = (
    (("range", b"1"),),
    (("range", b"2"), ("sticky", b"2")),
    (("sticky", b"3"), ("range", b"3")),
)
REJOIN = (E.rebalance_in_progress, E.illegal_generation)
FORGET = (E.unknown_member_id, E.fenced_instance_id)


class Client:
    """A consumer as the protocol wants it to be."""

    def __init__(self, name: str, instance: str | None, version: int, offer: int) -> None:
        self.name = name
        self.instance = instance
        self.version = version
        self.offer = OFFERS[offer]
        self.member_id = ""
        self.joined: JoinAnswer | None = None
        self.assignment: bytes | None = None
        self.waits: tuple[str, int] | None = None
        """Its request under way."""

    def forget(self) -> None:
        self.member_id, self.joined, self.assignment = "", None, None


class GroupMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.numbers = count(1)
        self.group = self.make()
        self.clients: list[Client] = []
        self.tickets: dict[tuple[str, int], Client | None] = {}
        """Every ticket without an answer; None: its client has gone or given it up."""
        self.disk: KeptGroup | None = None
        self.generations: dict[tuple[int, int], list[JoinAnswer]] = {}
        """(restarts, generation) → every answer of it."""
        self.given: dict[tuple[int, int], dict[str, bytes]] = {}
        self.restarts = 0

    def make(self) -> Group:
        return Group("g", SETTINGS, self.clock, new_id=lambda: str(next(self.numbers)))

    # -- the rim

    def ticket(self, client: Client, kind: str) -> tuple[str, int]:
        ticket = (kind, next(self.numbers))
        if client.waits is not None:
            self.tickets[client.waits] = None
        self.tickets[ticket] = client
        client.waits = ticket
        return ticket

    def drain(self) -> None:
        outbox, self.group.outbox = self.group.outbox, []
        for ticket, answer in outbox:
            assert ticket in self.tickets, "a ticket was answered twice"
            client = self.tickets.pop(ticket)
            if isinstance(answer, JoinAnswer) and answer.error is E.none:
                self.note(answer)
            if client is None:
                continue
            client.waits = None
            if isinstance(answer, JoinAnswer):
                self.take_join(client, answer)
            elif answer.error is E.none:
                given = self.given.get((self.restarts, client.joined.generation), {})
                client.assignment = answer.assignment
                if given:
                    renamed = client.instance is not None
                    assert renamed or answer.assignment == given.get(client.member_id, b"")
            elif answer.error in FORGET:
                client.forget()
            else:
                client.joined = None

    def note(self, answer: JoinAnswer) -> None:
        """All members of a generation are told the same."""
        told = self.generations.setdefault((self.restarts, answer.generation), [])
        for other in told:
            assert other.protocol == answer.protocol
            assert other.protocol_type == answer.protocol_type
        leaders = {row.member_id for row in (*told, answer) if row.members}
        statics = any(row.instance_id for row in self.group.members)
        assert len(leaders) <= 1 or statics, "two leaders in one generation"
        told.append(answer)

    def take_join(self, client: Client, answer: JoinAnswer) -> None:
        if answer.error is E.none:
            client.member_id, client.joined, client.assignment = answer.member_id, answer, None
        elif answer.error is E.member_id_required:
            client.member_id = answer.member_id
        elif answer.error in FORGET:
            client.forget()
        elif answer.error is E.inconsistent_group_protocol:
            assert len(client.offer) < 2, "range and sticky are what everybody may speak"
            client.offer = OFFERS[1]  # its user sees the error and helps
        else:
            assert answer.error in (*REJOIN, E.coordinator_not_available), answer.error

    # -- what clients do

    @rule(
        static=st.booleans(),
        version=st.sampled_from([3, 5, 9]),
        offer=st.integers(0, len(OFFERS) - 1),
    )
    def comes(self, static, version, offer):
        if len(self.clients) < 6:
            name = f"c{next(self.numbers)}"
            client = Client(name, name if static else None, version, offer)
            self.clients.append(client)
            self.join(client)

    def pick(self, data) -> Client:
        return data.draw(st.sampled_from(self.clients))

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def joins(self, data):
        self.join(self.pick(data))

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), offer=st.integers(0, len(OFFERS) - 1))
    def joins_changed(self, data, offer):
        client = self.pick(data)
        client.offer = OFFERS[offer]
        self.join(client)

    @precondition(lambda self: self.clients)
    @rule(data=st.data())
    def starts_anew(self, data):
        """The process of a client is killed and started again."""
        client = self.pick(data)
        client.forget()
        self.join(client)

    def join(self, client: Client) -> None:
        self.group.join(
            self.ticket(client, "join"),
            Joining(
                member_id=client.member_id,
                instance_id=client.instance,
                client_id=client.name,
                client_host="h",
                session_timeout_ms=10_000,
                rebalance_timeout_ms=30_000,
                protocol_type="consumer",
                protocols=client.offer,
                needs_known_id=client.version >= 4,
                can_skip_assignment=client.version >= 9,
            ),
        )
        self.drain()

    @precondition(lambda self: any(client.joined for client in self.clients))
    @rule(data=st.data())
    def syncs(self, data):
        self.sync(data.draw(st.sampled_from([row for row in self.clients if row.joined])))

    def sync(self, client: Client) -> None:
        joined = client.joined
        given = {}
        if joined.leader == client.member_id and not joined.skip_assignment:
            given = {
                row.member_id: f"{joined.generation}/{row.member_id}".encode()
                for row in joined.members
            }
            if self.group.generation == joined.generation and given:
                self.given.setdefault((self.restarts, joined.generation), given)
        self.group.sync(
            self.ticket(client, "sync"),
            Syncing(
                member_id=client.member_id,
                instance_id=client.instance,
                generation=joined.generation,
                protocol_type="consumer",
                protocol=joined.protocol,
                assignments=given,
            ),
        )
        self.drain()

    @precondition(lambda self: any(client.joined for client in self.clients))
    @rule(data=st.data())
    def beats(self, data):
        self.beat(data.draw(st.sampled_from([row for row in self.clients if row.joined])))

    def beat(self, client: Client) -> None:
        error = self.group.heartbeat(client.member_id, client.instance, client.joined.generation)
        if error in FORGET:
            client.forget()
        elif error in REJOIN:
            client.joined, client.assignment = None, None
        else:
            assert error is E.none

    @precondition(lambda self: self.clients)
    @rule(data=st.data(), politely=st.booleans())
    def goes(self, data, politely):
        client = self.pick(data)
        self.clients.remove(client)
        for ticket, owner in self.tickets.items():
            if owner is client:
                self.tickets[ticket] = None
        if politely:
            leaving = Leaving(member_id=client.member_id, instance_id=client.instance)
            self.group.leave(leaving)
            self.drain()

    # -- what the world does

    @rule(seconds=st.sampled_from([0.1, 0.5, 3.0, 9.9, 10.0, 31.0]))
    def waits(self, seconds):
        self.let_pass(seconds)

    def let_pass(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while (deadline := self.group.wake_at) is not None and deadline <= end:
            self.clock.advance(max(deadline - self.clock.monotonic(), 0))
            self.group.expire()
            self.drain()
        self.clock.advance(max(end - self.clock.monotonic(), 0))

    @rule(works=st.booleans())
    def disk_answers(self, works):
        self.keep(works=works)

    def keep(self, *, works: bool) -> None:
        rows, self.group.to_keep = self.group.to_keep, []
        for keep in rows:
            if works:
                self.disk = keep.kept
            self.group.kept(keep, E.none if works else E.coordinator_not_available)
            self.drain()

    @rule()
    def restarts_broker(self):
        self.restarts += 1
        self.tickets.clear()
        for client in self.clients:
            client.waits = None
        if self.disk is None:
            self.group = self.make()
        else:
            self.group = Group.recovered("g", self.disk, SETTINGS, self.clock)
            self.group._new_id = lambda: str(next(self.numbers))

    # -- what holds

    @invariant()
    def one_leader_as_long_as_there_are_members(self):
        members = self.group.members
        assert (members.leader is not None) == bool(len(members))
        assert members.leader is None or members.leader in members

    @invariant()
    def counts_are_true(self):
        members = self.group.members
        assert members.joining == sum(row.joining is not None for row in members)
        assert members.size_bytes == sum(row.size_bytes for row in members)
        assert members.by_instance == {
            row.instance_id: row.id for row in members if row.instance_id is not None
        }
        assert all(row.id == key for key, row in members.by_id.items())

    @invariant()
    def every_ticket_waits_with_a_member_or_with_the_disk(self):
        held = [row.joining for row in self.group.members] + [
            row.syncing for row in self.group.members
        ]
        assert {ticket for ticket in held if ticket is not None} == set(self.tickets)

    @invariant()
    def members_share_a_protocol(self):
        if len(self.group.members):
            assert self.group.members.common()

    @invariant()
    def an_empty_group_waits_for_nothing(self):
        if self.group.state is State.EMPTY:
            assert not len(self.group.members)

    @invariant()
    def somebody_looks_after_every_member(self):
        """A member either has a deadline or waits for an answer: none is there for ever."""
        for row in self.group.members:
            assert row.deadline is not None or row.joining or row.syncing
        if self.group.state is State.PREPARING:
            assert self.group.wake_at is not None

    def teardown(self):
        """Once it is quiet, all clients share one stable generation, each with its part."""
        for _ in range(200):
            for client in self.clients:
                if client.waits is None and client.joined is None:
                    self.join(client)
                elif client.waits is None and client.assignment is None:
                    self.sync(client)
                elif client.joined is not None and client.assignment is not None:
                    self.beat(client)
            self.keep(works=True)
            self.let_pass(2.0)
            members = {client.member_id for client in self.clients}
            if (
                self.group.state in (State.STABLE, State.EMPTY)
                and members == set(self.group.members.by_id)
                and all(client.assignment is not None for client in self.clients)
            ):
                break
        else:
            raise AssertionError(f"the group never came to rest: {self.group.state}")
        assert not self.tickets
        generations = {client.joined.generation for client in self.clients}
        assert len(generations) <= 1
        parts = [client.assignment for client in self.clients]
        assert len(set(parts)) == len(parts), "two members have the same part"
        assert all(parts), "a member was left without a part"


TestGroup = GroupMachine.TestCase
TestGroup.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
