"""Users in the metadata store: names, passwords, and what is never kept."""

from __future__ import annotations

import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import AlreadyExists, Conflict, InvalidName, InvalidRequest, NotFound
from onelog.metadata.local import LocalStore
from onelog.metadata.store import Delete
from onelog.security.hashing import PASSWORD_BYTES_MAX, HashThreads, matches
from onelog.security.identity import NAME_BYTES_MAX
from onelog.security.users import Users, decode_user, key_of


@pytest.fixture
async def place(tmp_path):
    clock = ManualClock()
    store = await LocalStore.open(tmp_path / "metadata.db", clock)
    threads = HashThreads()
    yield Users(store, threads, clock), store, clock
    await threads.close()
    await store.close()


async def test_a_user_is_added_listed_changed_and_removed(place):
    users, _, clock = place
    await users.add("bob", "one")
    await users.add("alice", "two", scram=False)
    made_ms = clock.now_ms()
    clock.advance(60)
    await users.set_password("bob", "three")
    alice, bob = await users.infos()
    assert (alice.name, alice.scram, alice.disabled) == ("alice", (), False)
    assert (bob.name, bob.scram) == ("bob", ("SCRAM-SHA-256", "SCRAM-SHA-512"))
    assert (bob.created_ms, bob.changed_ms) == (made_ms, made_ms + 60_000)
    await users.remove("bob")
    assert [user.name for user in await users.infos()] == ["alice"]


async def test_a_new_password_leaves_a_disabled_user_disabled(place):
    users, _, _ = place
    await users.add("bob", "one")
    await users.set_disabled("bob", True)
    await users.set_password("bob", "two")
    assert [user.disabled for user in await users.infos()] == [True]
    await users.set_disabled("bob", False)
    assert [user.disabled for user in await users.infos()] == [False]


async def test_the_store_holds_a_hash_and_keys_but_no_password(place):
    users, store, _ = place
    await users.add("bob", "correct horse battery")
    entry = await store.get(key_of("bob"))
    assert entry is not None
    assert b"correct horse" not in entry.value
    user = decode_user(entry)
    assert user.password_hash.startswith("$argon2id$")
    assert matches(user.password_hash, b"correct horse battery")
    assert not matches(user.password_hash, b"correct horse batterx")
    salts = {item.salt for item in user.scram.values()}
    assert len(salts) == 2
    assert all(item.iterations >= 4096 for item in user.scram.values())


async def test_an_existing_user_is_not_added_again(place):
    users, _, _ = place
    await users.add("bob", "one")
    with pytest.raises(AlreadyExists, match="'bob' exists already"):
        await users.add("bob", "two")


@pytest.mark.parametrize("call", ["set_password", "set_disabled", "remove"])
@pytest.mark.parametrize("name", ["nobody", "", "x" * 5000])
async def test_a_user_that_does_not_exist_is_not_found(place, call, name):
    users, _, _ = place
    more = {"set_password": ("secret",), "set_disabled": (True,), "remove": ()}[call]
    with pytest.raises(NotFound):
        await getattr(users, call)(name, *more)


async def test_a_change_between_reading_and_writing_is_a_conflict(place):
    users, store, _ = place
    await users.add("bob", "one")
    entry, _ = await users._get("bob")
    await store.put(entry.key, entry.value)
    with pytest.raises(Conflict):
        await users._replace(entry, Delete(entry.key))
    assert len(await users.infos()) == 1


@pytest.mark.parametrize(
    "name", ["bob", "Bob Smith", "bob@example.org", "ö", "a/b", "x" * NAME_BYTES_MAX, "=,"]
)
async def test_names_that_a_user_may_have(place, name):
    users, _, _ = place
    await users.add(name, "secret", scram=False)
    assert [user.name for user in await users.infos()] == [name]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "anonymous",
        "local",
        "a\nb",
        "a\0b",
        "\x7f",
        "bob ",
        " bob",
        "a\u00a0b",  # SASLprep makes a space of it
        "\u2168",  # and "IX" of this one
        "so\u00adft",
        "\ud800",
        "\ue000",
        "x" * (NAME_BYTES_MAX + 1),
        "ö" * NAME_BYTES_MAX,
    ],
)
async def test_names_that_no_user_may_have(place, name):
    users, _, _ = place
    with pytest.raises(InvalidName):
        await users.add(name, "secret")
    assert await users.infos() == ()


@pytest.mark.parametrize(
    ("password", "why"),
    [
        ("", "at least one"),
        ("x" * (PASSWORD_BYTES_MAX + 1), "at most"),
        ("ö" * PASSWORD_BYTES_MAX, "at most"),
        ("\ud800", "UTF-8"),
        ("tab\there", "SASLprep"),
        ("\u00ad", "visible"),
    ],
)
async def test_passwords_that_are_refused_and_why(place, password, why):
    users, _, _ = place
    with pytest.raises(InvalidRequest, match=why):
        await users.add("bob", password)


async def test_the_longest_password_works(place):
    users, store, _ = place
    await users.add("bob", "x" * PASSWORD_BYTES_MAX)
    entry = await store.get(key_of("bob"))
    assert matches(decode_user(entry).password_hash, b"x" * PASSWORD_BYTES_MAX)
