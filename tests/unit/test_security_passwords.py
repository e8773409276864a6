"""Password checks: the cache, the bounds, and equal work for unknown users."""

from __future__ import annotations

import asyncio
import threading

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import NotAuthenticated, Unavailable
from onelog.metadata.local import LocalStore
from onelog.observe import Troubles
from onelog.security import hashing, passwords
from onelog.security.hashing import NOBODY, HashThreads
from onelog.security.identity import Identity
from onelog.security.passwords import Passwords, PasswordSettings
from onelog.security.table import UserTable
from onelog.security.users import Users


class Place:
    def __init__(self, clock, table, users, threads) -> None:
        self.clock = clock
        self.table = table
        self.users = users
        self.threads = threads

    def passwords(self, **settings) -> Passwords:
        return Passwords(self.table, self.threads, self.clock, PasswordSettings(**settings))


@pytest.fixture
async def place(tmp_path):
    clock = ManualClock()
    store = await LocalStore.open(tmp_path / "metadata.db", clock)
    threads = HashThreads()
    table = UserTable(store, Troubles(clock))
    await table.open()
    users = Users(store, threads, clock, table.rows)
    await users.add("bob", "pencil", scram=False)
    yield Place(clock, table, users, threads)
    await table.close()
    await threads.close()
    await store.close()


class Asked(list[tuple[str, bytes]]):
    """What hashes were asked for; `wait` waits for the first."""

    def __init__(self) -> None:
        super().__init__()
        self._first = threading.Event()

    def append(self, item) -> None:
        super().append(item)
        self._first.set()

    def wait(self) -> None:
        assert self._first.wait(10)


@pytest.fixture
def held(monkeypatch):
    """Hashes wait until the test lets them go; what was asked is written down."""
    release = threading.Event()
    asked = Asked()

    def matches(encoded, password):
        asked.append((encoded, password))
        assert release.wait(10)
        return hashing.matches(encoded, password)

    monkeypatch.setattr(passwords, "matches", matches)
    yield release, asked
    release.set()


async def test_the_right_password_says_who_it_is(place):
    checks = place.passwords()
    identity = await checks.verify("bob", b"pencil")
    assert identity == Identity("bob", "password", place.table.get("bob").revision)


@pytest.mark.parametrize(
    ("name", "password"),
    [
        ("bob", b"pencils"),
        ("bob", b""),
        ("bob", b"\xff\x00"),
        ("eve", b"pencil"),
        ("", b""),
        ("x" * 70_000, b"pencil"),
        ("bob", b"x" * 70_000),
    ],
)
async def test_everything_else_is_refused_with_the_same_words(place, name, password):
    with pytest.raises(NotAuthenticated, match="wrong name or password"):
        await place.passwords().verify(name, password)


async def test_a_right_password_is_remembered_and_then_costs_no_hash(place):
    checks = place.passwords(cached_s=60)
    assert checks.recall("bob", b"pencil") is None
    identity = await checks.verify("bob", b"pencil")
    assert checks.recall("bob", b"pencil") == identity
    assert await checks.verify("bob", b"pencil") == identity
    assert (checks.checks, checks.recalls) == (1, 2)
    place.clock.advance(60)
    assert checks.recall("bob", b"pencil") is None


async def test_the_cache_holds_no_password(place):
    checks = place.passwords()
    await checks.verify("bob", b"pencil")
    assert len(checks._cache) == 1
    assert b"pencil" not in repr(checks._cache).encode()


async def test_a_wrong_password_is_remembered_shortly(place):
    checks = place.passwords(refused_s=5)
    for _ in range(3):
        with pytest.raises(NotAuthenticated):
            await checks.verify("bob", b"wrong")
    assert checks.checks == 1
    assert checks.recall("bob", b"wrong") is None
    place.clock.advance(5)
    with pytest.raises(NotAuthenticated):
        await checks.verify("bob", b"wrong")
    assert checks.checks == 2


async def test_a_new_password_applies_at_once_and_the_old_one_is_void(place):
    checks = place.passwords()
    await checks.verify("bob", b"pencil")
    await place.users.set_password("bob", "crayon")
    assert checks.recall("bob", b"pencil") is None
    with pytest.raises(NotAuthenticated):
        await checks.verify("bob", b"pencil")
    assert (await checks.verify("bob", b"crayon")).name == "bob"


@pytest.mark.parametrize("how", ["disable", "remove"])
async def test_a_disabled_or_removed_user_is_out_at_once(place, how):
    checks = place.passwords()
    await checks.verify("bob", b"pencil")
    if how == "disable":
        await place.users.set_disabled("bob", True)
    else:
        await place.users.remove("bob")
    assert checks.recall("bob", b"pencil") is None
    with pytest.raises(NotAuthenticated):
        await checks.verify("bob", b"pencil")


async def test_the_cache_is_bounded_and_forgets_the_oldest(place):
    """I8."""
    checks = place.passwords(cached_max=2)
    await checks.verify("bob", b"pencil")
    for guess in (b"a", b"b"):
        with pytest.raises(NotAuthenticated):
            await checks.verify("bob", guess)
    assert len(checks._cache) == 2
    assert checks.recall("bob", b"pencil") is None


async def test_an_unknown_user_costs_the_same_hash_as_a_known_one(place, held):
    release, asked = held
    release.set()
    checks = place.passwords()
    for name in ("bob", "eve"):
        with pytest.raises(NotAuthenticated):
            await checks.verify(name, b"wrong")
    known, unknown = (encoded for encoded, _ in asked)
    assert unknown == NOBODY
    assert known.rsplit("$", 2)[0] == NOBODY.rsplit("$", 2)[0]  # the same work
    assert len(known) == len(unknown)


async def test_equal_checks_at_one_time_are_one_hash(place, held):
    release, asked = held
    checks = place.passwords()
    logins = [asyncio.ensure_future(checks.verify("bob", b"pencil")) for _ in range(50)]
    await asyncio.sleep(0)
    release.set()
    assert {identity.name for identity in await asyncio.gather(*logins)} == {"bob"}
    assert len(asked) == 1


async def test_too_many_checks_are_refused_for_now_and_the_others_go_on(place, held):
    """I8: a storm of logins waits in a bounded queue; the error is retriable."""
    release, _ = held
    checks = place.passwords(waiting_max=5)
    logins = [asyncio.ensure_future(checks.verify("eve", b"%d" % n)) for n in range(5)]
    await asyncio.sleep(0)
    with pytest.raises(Unavailable) as refused:
        await checks.verify("bob", b"pencil")
    assert refused.value.retriable
    assert checks.refusals == 1
    release.set()
    results = await asyncio.gather(*logins, return_exceptions=True)
    assert all(isinstance(item, NotAuthenticated) for item in results)
    assert (await checks.verify("bob", b"pencil")).name == "bob"


async def test_a_peer_that_goes_away_takes_its_waiting_check_with_it(place, held):
    release, asked = held
    checks = place.passwords(waiting_max=10)
    logins = [asyncio.ensure_future(checks.verify("eve", b"%d" % n)) for n in range(10)]
    await asyncio.sleep(0)
    for login in logins:
        login.cancel()
    await asyncio.gather(*logins, return_exceptions=True)
    release.set()
    assert (await checks.verify("bob", b"pencil")).name == "bob"
    assert len(asked) <= 3  # two were in a thread already, the others were dropped


async def test_one_of_two_equal_checks_may_go_away(place, held):
    release, _ = held
    checks = place.passwords()
    stays, goes = (asyncio.ensure_future(checks.verify("bob", b"pencil")) for _ in range(2))
    await asyncio.sleep(0)
    goes.cancel()
    await asyncio.gather(goes, return_exceptions=True)
    release.set()
    assert (await stays).name == "bob"


async def test_a_user_that_is_removed_during_the_hash_does_not_log_in(place, held):
    release, asked = held
    checks = place.passwords()
    login = asyncio.ensure_future(checks.verify("bob", b"pencil"))
    await asyncio.to_thread(asked.wait)
    await place.users.remove("bob")
    release.set()
    with pytest.raises(NotAuthenticated):
        await login


async def test_the_loop_runs_while_hashes_are_computed(place, held):
    release, asked = held
    login = asyncio.ensure_future(place.passwords().verify("bob", b"pencil"))
    await asyncio.to_thread(asked.wait)
    assert not login.done()
    release.set()
    await login
