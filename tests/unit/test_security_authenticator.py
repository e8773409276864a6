"""The one door of identity: anonymous peers, certificates, SCRAM, and users that change."""

from __future__ import annotations

import asyncio

import pytest

from onelog.base.clock import SystemClock
from onelog.base.errors import NotAuthenticated, OffsetOutOfRange, Timeout, Unavailable
from onelog.metadata import projection
from onelog.metadata.local import LocalStore
from onelog.security.authenticator import Authenticator, SecuritySettings
from onelog.security.hashing import HashThreads
from onelog.security.identity import ANONYMOUS, Identity
from onelog.security.users import Users, key_of
from tests.unit.test_security_scram import Client


@pytest.fixture
async def store(tmp_path):
    opened = await LocalStore.open(tmp_path / "metadata.db", SystemClock(), history_revisions=4)
    yield opened
    await opened.close()


@pytest.fixture
async def door(store):
    opened = await Authenticator.open(store, SystemClock())
    yield opened
    await opened.close()


async def opened_with(store, **settings) -> Authenticator:
    return await Authenticator.open(store, SystemClock(), SecuritySettings(**settings))


# ---- anonymous ----

PEERS = [
    (True, "127.0.0.1"),
    (True, "::1"),
    (True, "::ffff:127.0.0.1"),
    (True, "203.0.113.9"),  # behind a proxy on this machine
    (True, None),
    (False, "127.0.0.1"),
    (False, "203.0.113.9"),
    (False, "nonsense"),
]


@pytest.mark.parametrize(
    ("policy", "let_in"), [("loopback", PEERS[:3]), ("always", PEERS), ("never", [])]
)
async def test_who_may_come_without_a_name(store, policy, let_in):
    door = await opened_with(store, anonymous=policy)
    for loopback, host in PEERS:
        if (loopback, host) in let_in:
            identity = door.anonymous(listener_is_loopback=loopback, peer_host=host)
            assert identity is ANONYMOUS
        else:
            with pytest.raises(NotAuthenticated):
                door.anonymous(listener_is_loopback=loopback, peer_host=host)
    await door.close()


# ---- certificates ----


def certificate(*names: str):
    return {"subject": ((("countryName", "DE"),), *((("commonName", name),) for name in names))}


async def test_a_certificate_says_its_common_name(door):
    assert door.certificate(certificate("device-7")) == Identity("device-7", "certificate")


@pytest.mark.parametrize(
    "shown",
    [None, {}, {"subject": ()}, certificate(), certificate(""), certificate("a", "b")],
)
async def test_a_certificate_without_one_name_is_refused(door, shown):
    with pytest.raises(NotAuthenticated):
        door.certificate(shown)


@pytest.mark.parametrize("name", ["anonymous", "local", "a\nb", "a\x1b[2J", "a\x9b31m"])
async def test_a_certificate_cannot_take_a_name_that_is_reserved_or_steers_a_terminal(door, name):
    with pytest.raises(NotAuthenticated):
        door.certificate(certificate(name))


async def test_a_certificate_of_a_disabled_user_is_refused(door):
    await door.users.add("bob", "pencil", scram=False)
    identity = door.certificate(certificate("bob"))
    assert identity.revision > 0
    assert door.is_current(identity)
    await door.users.set_disabled("bob", True)
    assert not door.is_current(identity)
    with pytest.raises(NotAuthenticated):
        door.certificate(certificate("bob"))


async def test_certificates_can_be_kept_to_users(store):
    door = await opened_with(store, certificate_users_only=True)
    with pytest.raises(NotAuthenticated):
        door.certificate(certificate("bob"))
    await door.users.add("bob", "pencil", scram=False)
    assert door.certificate(certificate("bob")).name == "bob"
    await door.close()


# ---- passwords and SCRAM through the door ----


async def test_a_user_logs_in_by_password_and_is_recalled(door):
    await door.users.add("bob", "pencil", scram=False)
    assert door.recall("bob", b"pencil") is None
    identity = await door.password("bob", b"pencil")
    assert door.recall("bob", b"pencil") == identity
    assert door.is_current(identity)
    await door.users.set_password("bob", "crayon")
    assert not door.is_current(identity)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
async def test_a_user_logs_in_by_scram(door, mechanism):
    await door.users.add("bob", "pencil")
    client, server = Client(mechanism, "bob", "pencil"), door.scram(mechanism)
    assert server.step(client.final(server.step(client.first()))) == client.server_final
    assert (server.identity.name, server.identity.proof) == ("bob", "scram")
    assert door.is_current(server.identity)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-1", "SCRAM-SHA-256-PLUS", ""])
async def test_a_mechanism_that_is_not_known_is_refused_and_the_known_ones_named(door, mechanism):
    with pytest.raises(NotAuthenticated, match="SCRAM-SHA-256 or SCRAM-SHA-512"):
        door.scram(mechanism)


@pytest.mark.parametrize("how", ["disabled", "no-scram"])
async def test_a_user_that_cannot_log_in_by_scram_looks_like_an_unknown_one(door, how):
    unknown = door.scram("SCRAM-SHA-256").step(b"n,,n=bob,r=x").split(b",")[1:]
    await door.users.add("bob", "pencil", scram=how != "no-scram")
    if how == "disabled":
        await door.users.set_disabled("bob", True)
    assert door.scram("SCRAM-SHA-256").step(b"n,,n=bob,r=x").split(b",")[1:] == unknown


async def test_made_up_salts_survive_a_restart(store):
    answers = []
    for _ in range(2):
        door = await opened_with(store)
        answers.append(door.scram("SCRAM-SHA-256").step(b"n,,n=eve,r=x").split(b",")[1])
        await door.close()
    assert answers[0] == answers[1]


# ---- users that change ----


async def test_users_of_before_are_known_after_a_restart(store):
    first = await opened_with(store)
    await first.users.add("bob", "pencil", scram=False)
    await first.close()
    second = await opened_with(store)
    assert (await second.password("bob", b"pencil")).name == "bob"
    await second.close()


async def test_a_change_by_another_writer_of_the_store_is_seen(store, door):
    threads = HashThreads()
    other = Users(store, threads, SystemClock(), door._table.rows)
    await other.add("bob", "pencil", scram=False)
    assert (await door.password("bob", b"pencil")).name == "bob"
    await threads.close()


async def test_who_has_no_name_is_an_administrator_only_while_there_is_no_user(store, door):
    assert door.is_administrator("anonymous")
    assert not door.is_administrator("somebody")
    await door.users.add("bob", "pencil", scram=False)
    assert not door.is_administrator("anonymous")
    assert not door.is_administrator("bob")
    await door.users.set_administrator("bob", True)
    assert door.is_administrator("bob")
    await door.users.set_administrator("bob", False)
    assert not door.is_administrator("bob")
    await door.users.remove("bob")
    assert door.is_administrator("anonymous")
    revision = await store.put("users/odd", b"not a record")
    await door._table.reached(revision)
    assert not door.is_administrator("anonymous"), "there is a user, whatever it is (I9)"


async def test_to_be_an_administrator_outlives_a_new_password(door):
    await door.users.add("bob", "pencil", scram=False)
    await door.users.set_administrator("bob", True)
    await door.users.set_password("bob", "crayon")
    assert door.is_administrator("bob")
    assert (await door.password("bob", b"crayon")).name == "bob"


async def test_listeners_hear_of_each_user_that_changes(door):
    heard = []
    door.on_change(heard.append)
    await door.users.add("bob", "pencil", scram=False)
    await door.users.set_disabled("bob", True)
    await door.users.remove("bob")
    assert heard == ["bob", "bob", "bob"]


class BrokenWatch:
    """Says nothing until it is told to fail."""

    def __init__(self, error) -> None:
        self._error = error
        self.fail = asyncio.Event()

    async def __aiter__(self):
        await self.fail.wait()
        raise self._error
        yield

    def close(self) -> None:
        self.fail.set()


class BreakingStore:
    """The real store, but its first watch is broken."""

    def __init__(self, store, error) -> None:
        self._store = store
        self.broken = BrokenWatch(error)
        self._watches = 0

    def __getattr__(self, name):
        return getattr(self._store, name)

    async def watch(self, prefix, from_revision=0):
        self._watches += 1
        if self._watches == 1:
            return self.broken
        return await self._store.watch(prefix, from_revision)


@pytest.mark.parametrize("error", [OffsetOutOfRange("compacted"), Unavailable("no route")])
async def test_a_watch_that_breaks_loads_every_user_anew(store, error, monkeypatch):
    monkeypatch.setattr(projection, "RETRY_S", 0.0)
    before = await opened_with(store)
    await before.users.add("old", "pencil", scram=False)
    await before.close()

    breaking = BreakingStore(store, error)
    door = await opened_with(breaking)
    heard = []
    door.on_change(heard.append)
    threads = HashThreads()
    other = Users(store, threads, SystemClock())
    await other.add("new", "pencil", scram=False)
    await other.remove("old")
    assert (door._table.get("old"), door._table.get("new")) != (None, None)  # nothing came yet
    breaking.broken.fail.set()
    await door.users.set_disabled("new", True)
    assert door._table.get("old") is None
    assert door._table.get("new").user.disabled
    assert {"new", "old"} <= set(heard)
    await threads.close()
    await door.close()


async def test_a_record_that_cannot_be_read_lets_nobody_in_and_harms_nobody(store, door):
    await door.users.add("bob", "pencil", scram=False)
    revision = await store.put(key_of("eve"), b"not a record")
    await door._table.reached(revision)
    with pytest.raises(NotAuthenticated):
        await door.password("eve", b"")
    assert (await door.password("bob", b"pencil")).name == "bob"


async def test_a_change_that_never_arrives_is_a_timeout(door, monkeypatch):
    monkeypatch.setattr(projection, "REACH_TIMEOUT_S", 0.01)
    with pytest.raises(Timeout):
        await door._table.reached(10**9)


async def test_metrics_count_users_and_checks(door):
    await door.users.add("bob", "pencil", scram=False)
    await door.password("bob", b"pencil")
    await door.password("bob", b"pencil")
    values = {sample.name: sample.value for sample in door.samples()}
    assert values == {
        "onelog_users": 1,
        "onelog_password_checks_total": 1,
        "onelog_password_recalls_total": 1,
        "onelog_password_refusals_total": 0,
        "onelog_bans": 0,
        "onelog_bans_total": 0,
        "onelog_logins_failed_total": 0,
    }
