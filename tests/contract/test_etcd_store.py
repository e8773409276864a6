"""Does the store on etcd keep its rules: fail-over, unknown outcomes, broken watches, bounds?"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trustme

from onelog.base.clock import SystemClock
from onelog.base.errors import (
    ConfigError,
    NotFound,
    OffsetOutOfRange,
    OutcomeUnknown,
    Unavailable,
)
from onelog.cluster_assembly import etcd_settings, open_etcd
from onelog.config import load
from onelog.metadata import etcd_members, etcd_watch
from onelog.metadata.etcd import EtcdSettings, EtcdStore
from onelog.metadata.etcd_http import ANSWER_BYTES_MAX
from onelog.metadata.etcd_members import AWAY, OLDER, version_problem
from onelog.metadata.local import LocalStore
from onelog.metadata.projection import LOST, Projection
from onelog.metadata.store import Compare, Delete, Put
from onelog.observe.troubles import Troubles
from tests.support.etcd import EtcdCluster, needs_etcd
from tests.support.gateway import Gateway
from tests.support.mqtt import until

WAIT_S = 20.0


@pytest.fixture
def troubles() -> Troubles:
    return Troubles(SystemClock())


@pytest.fixture
def one(tmp_path: Path) -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(
        tmp_path, extra=("--experimental-watch-progress-notify-interval", "500ms")
    )
    try:
        yield cluster.start()
    finally:
        cluster.close()


@pytest.fixture
def three(tmp_path: Path) -> Iterator[EtcdCluster]:
    cluster = EtcdCluster(tmp_path, 3)
    try:
        yield cluster.start()
    finally:
        cluster.close()


def settings(urls: tuple[str, ...], **changes: object) -> EtcdSettings:
    return EtcdSettings(endpoints=urls, prefix="/onelog/test/", **changes)


@contextlib.asynccontextmanager
async def opened(
    urls: tuple[str, ...], troubles: Troubles, **changes: object
) -> AsyncIterator[EtcdStore]:
    store = await EtcdStore.open(settings(urls, **changes), troubles)
    try:
        yield store
    finally:
        await store.close()


# ---- one member ----


@needs_etcd
async def test_two_clusters_in_one_etcd_do_not_see_each_other(
    one: EtcdCluster, troubles: Troubles
) -> None:
    async with opened(one.urls, troubles) as here:
        other = await EtcdStore.open(
            EtcdSettings(endpoints=one.urls, prefix="/onelog/other/"), troubles
        )
        await here.put("a", b"1")
        assert await other.get("a") is None
        assert (await other.range("")).entries == ()
        await other.close()


@needs_etcd
async def test_a_range_of_many_keys_is_one_revision_in_pages(
    one: EtcdCluster, troubles: Troubles
) -> None:
    async with opened(one.urls, troubles) as store:
        await store.write([Put(f"k/{number:04}", b"") for number in range(1300)])
        found = await store.range("k/")
        assert [entry.key for entry in found.entries] == [f"k/{n:04}" for n in range(1300)]
        assert len((await store.range("k/", limit=700)).entries) == 700
        # Rows that are too large for one answer come in smaller pages.
        for number in range(20):
            await store.put(f"big/{number:02}", bytes(1_000_000))
        assert len((await store.range("big/")).entries) == 20


@needs_etcd
async def test_history_that_was_compacted_ends_a_watch(
    one: EtcdCluster, troubles: Troubles
) -> None:
    async with opened(one.urls, troubles) as store:
        first = await store.put("a", b"1")
        last = await store.put("a", b"2")
        one.members[0].ask("/v3/kv/compaction", {"revision": last, "physical": True})
        with pytest.raises(OffsetOutOfRange):
            async with asyncio.timeout(WAIT_S):
                watch = await store.watch("", first)
                await anext(watch.__aiter__())
        # And a projection loads its rows again.
        rows = Projection(store, "a", lambda entry: entry.value, troubles)
        await rows.open()
        assert [value for _, value in rows.rows()] == [b"2"]
        await rows.close()


@needs_etcd
async def test_a_silent_stream_is_opened_anew_and_loses_nothing(
    one: EtcdCluster, troubles: Troubles
) -> None:
    """Behind a proxy that keeps the connection and hands on nothing."""
    async with (
        Gateway.before(one.members[0].port) as proxy,
        opened((proxy.url,), troubles, progress_s=0.5, pulse_s=600.0) as store,
    ):
        watch = await store.watch("w/")
        await store.put("w/a", b"1")
        assert (await anext(watch.__aiter__()))[0].entry.value == b"1"
        proxy.mute_streams()
        await store.put("w/a", b"2")
        async with asyncio.timeout(WAIT_S):
            assert (await anext(watch.__aiter__()))[0].entry.value == b"2"
        assert watch.reopened == 1


@needs_etcd
async def test_progress_notices_keep_a_quiet_watch_open(
    one: EtcdCluster, troubles: Troubles
) -> None:
    async with opened(one.urls, troubles, progress_s=0.5, pulse_s=600.0) as store:
        watch = await store.watch("quiet/")
        clock = await store.watch("clock")
        for _ in range(2):  # four seconds by etcd's own clock: a lease that ends
            lease = await store.grant(1.0)
            await store.put("clock", b"", lease)
            async with asyncio.timeout(WAIT_S):
                await anext(clock.__aiter__())
                await anext(clock.__aiter__())
        assert watch.reopened == 0


@needs_etcd
async def test_a_member_that_stands_still_breaks_its_watches_and_they_go_on_after_it(
    one: EtcdCluster, troubles: Troubles
) -> None:
    async with opened(one.urls, troubles, pulse_s=0.5, deadline_s=1.0) as store:
        watch = await store.watch("w/")
        one.members[0].stop()
        with pytest.raises(OutcomeUnknown):
            await store.put("w/unknown", b"")
        with pytest.raises(Unavailable):
            await store.get("w/a")
        assert [row.kind for row in troubles.standing()] == [AWAY]
        one.members[0].go_on()
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    await store.put("w/after", b"")
                    break
                except (OutcomeUnknown, Unavailable):
                    continue
            seen = []
            async for events in watch:
                seen += [event.entry.key for event in events]
                if seen[-1] == "w/after":
                    break
        # What was unknown came or not; what was answered is seen once.
        assert seen.count("w/after") >= 1
        assert seen.count("w/unknown") <= 1
        assert not troubles.standing()


@needs_etcd
async def test_a_member_that_is_only_a_learner_yet_is_passed_over(
    one: EtcdCluster, troubles: Troubles
) -> None:
    """What it refuses was surely not done: another member is asked, and nothing is unknown."""
    learner = await asyncio.to_thread(one.add_learner)
    async with opened((learner.url, one.members[0].url), troubles) as store:
        watch = await store.watch("w/")
        for number in range(3):
            for member in store.members.all:  # as if it had not been asked lately
                member.rests_until = 0.0
            store.members._first = 0
            await store.put(f"w/{number}", b"v")
            assert await store.get(f"w/{number}") is not None
        seen: list[str] = []
        async with asyncio.timeout(WAIT_S):
            async for changes in watch:
                seen += (change.entry.key for change in changes)
                if len(seen) == 3:
                    break
        assert seen == ["w/0", "w/1", "w/2"]
        assert not troubles.standing()


@needs_etcd
async def test_killed_and_started_again_everything_goes_on(
    one: EtcdCluster, troubles: Troubles
) -> None:
    member = one.members[0]
    async with opened(one.urls, troubles, deadline_s=1.0) as store:
        watch = await store.watch("w/")
        lease = await store.grant(60)
        await store.put("w/kept", b"1", lease)
        await anext(watch.__aiter__())
        member.kill()
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await store.put("w/kept", b"2")
        with pytest.raises(Unavailable):
            await store.get("w/kept")
        assert AWAY in [row.kind for row in troubles.standing()]
        one.restart(member)
        await asyncio.to_thread(one.wait)
        await store.keep_alive(lease)
        await store.put("w/kept", b"3", lease)
        async with asyncio.timeout(WAIT_S):
            while (await anext(watch.__aiter__()))[0].entry.value != b"3":
                pass
        assert not troubles.standing()


@needs_etcd
async def test_a_refused_connection_says_that_nothing_was_changed(
    one: EtcdCluster, troubles: Troubles
) -> None:
    async with opened(one.urls, troubles, deadline_s=1.0) as store:
        one.members[0].kill()
        await asyncio.sleep(0)
        outcomes = set()
        for _ in range(3):
            try:
                await store.put("a", b"")
            except (Unavailable, OutcomeUnknown) as error:
                outcomes.add(type(error))
        assert Unavailable in outcomes  # once the cut connections are known


@needs_etcd
async def test_an_etcd_that_was_emptied_is_not_believed(tmp_path: Path, troubles: Troubles) -> None:
    """Another etcd at the same address: nothing that it says counts."""
    cluster = EtcdCluster(tmp_path).start()
    (tmp_path / "again").mkdir()
    other = EtcdCluster(tmp_path / "again")
    try:
        async with opened(cluster.urls, troubles, deadline_s=2.0) as store:
            for _ in range(5):
                await store.put("a", b"")
            cluster.close()
            other.members[0].port = cluster.members[0].port
            other.start()
            with pytest.raises(Unavailable, match="another etcd"):
                await store.get("a")
            with pytest.raises(Unavailable, match="another etcd"):
                await store.put("a", b"")
            assert "etcd-refused" in [row.kind for row in troubles.standing()]
    finally:
        other.close()
        cluster.close()


@needs_etcd
async def test_a_revision_that_falls_is_not_believed(one: EtcdCluster, troubles: Troubles) -> None:
    async with opened(one.urls, troubles) as store:
        await store.put("a", b"")
        store.members.revision += 1000  # as if it had been there before a restore
        with pytest.raises(Unavailable, match="older copy"):
            await store.get("a")
        with pytest.raises(OutcomeUnknown, match="older copy"):
            await store.put("a", b"")
        assert [row.kind for row in troubles.standing()] == [OLDER]
        assert troubles.problem() is not None  # the node is not ready


@needs_etcd
async def test_a_snapshot_opens_as_an_embedded_store_without_rows_of_leases(
    one: EtcdCluster, troubles: Troubles, tmp_path: Path
) -> None:
    async with opened(one.urls, troubles) as store:
        await store.write([Put(f"s/{number}", b"%d" % number) for number in range(300)])
        await store.put("leased", b"", await store.grant(60))
        revision = await store.snapshot(tmp_path / "copy.db")
        assert revision == (await store.range("")).revision
    copy = await LocalStore.open(tmp_path / "copy.db", SystemClock())
    assert len((await copy.range("s/")).entries) == 300
    assert await copy.get("leased") is None
    await copy.close()


@needs_etcd
async def test_a_change_that_the_watch_lost_is_found_and_told(
    one: EtcdCluster, troubles: Troubles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onelog.metadata.projection.REACH_TIMEOUT_S", 0.2)
    async with opened(one.urls, troubles) as store:
        rows = Projection(store, "r/", lambda entry: entry.value, troubles)
        await rows.open()
        await rows.put("r/a", b"1")
        assert await rows.reconcile() == 0
        rows._rows.clear()  # as if the watch had not shown it
        assert await rows.reconcile() == 1
        assert troubles.count(LOST) == 1
        await until(lambda: rows.get("r/a") is not None)
        await rows.close()


# ---- passwords and certificates ----


@needs_etcd
async def test_a_password_is_used_and_a_token_that_ended_is_renewed(
    one: EtcdCluster, troubles: Troubles, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = one.members[0].ask
    ask("/v3/auth/user/add", {"name": "root", "password": "pencil"})
    ask("/v3/auth/role/add", {"name": "root"})
    ask("/v3/auth/user/grant", {"user": "root", "role": "root"})
    ask("/v3/auth/enable", {})
    async with opened(one.urls, troubles, user="root", password="pencil") as store:
        watch = await store.watch("a")
        await store.put("a", b"1")
        store.members._token = "no.token"  # as after a restart of etcd
        await store.put("a", b"2")
        async with asyncio.timeout(WAIT_S):
            values = [(await anext(watch.__aiter__()))[0].entry.value for _ in range(2)]
        assert values == [b"1", b"2"]
    with pytest.raises(ConfigError, match=r"cluster\.etcd\.user"):
        await EtcdStore.open(settings(one.urls, user="root", password="wrong"), troubles)
    with pytest.raises(Unavailable, match="needs a login"):
        await EtcdStore.open(settings(one.urls, deadline_s=1.0), troubles)


@needs_etcd
async def test_client_certificates_open_the_door_and_nothing_else_does(
    tmp_path: Path, troubles: Troubles
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name, made in (
        ("server", authority.issue_cert("127.0.0.1")),
        ("client", authority.issue_cert("client")),
    ):
        made.private_key_pem.write_to_path(tmp_path / f"{name}-key.pem")
        made.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
    files = {
        "cert-file": "server.pem",
        "key-file": "server-key.pem",
        "trusted-ca-file": "ca.pem",
    }
    extra = [word for name, file in files.items() for word in (f"--{name}", f"{tmp_path}/{file}")]
    cluster = EtcdCluster(tmp_path, extra=(*extra, "--client-cert-auth"))
    member = cluster.members[0]
    member.scheme = "https"
    chosen = [
        'cluster.mode="etcd"',
        f'cluster.etcd.endpoints=["{member.url}"]',
        f'cluster.etcd.ca_file="{tmp_path}/ca.pem"',
    ]
    own = [
        f'cluster.etcd.cert_file="{tmp_path}/client.pem"',
        f'cluster.etcd.key_file="{tmp_path}/client-key.pem"',
    ]
    member.start(cluster.initial)
    try:
        async with asyncio.timeout(WAIT_S):
            store = await open_etcd(etcd_settings(load(None, {}, chosen + own).config), troubles)
        watch = await store.watch("a")
        await store.put("a", b"1")
        async with asyncio.timeout(WAIT_S):
            assert (await anext(watch.__aiter__()))[0].entry.value == b"1"
        await store.close()
        with pytest.raises(Unavailable):
            await EtcdStore.open(etcd_settings(load(None, {}, chosen).config), troubles)
        await asyncio.sleep(0.1)  # asyncio closes sockets of TLS later
    finally:
        cluster.close()


# ---- three members ----


@needs_etcd
async def test_a_killed_member_costs_one_change_at_most(
    three: EtcdCluster, troubles: Troubles
) -> None:
    async with opened(three.urls, troubles) as store:
        watch = await store.watch("w/")
        for victim in list(three.members):
            victim.kill()
            done = 0
            async with asyncio.timeout(WAIT_S):
                while done < 5:
                    try:
                        await store.put(f"w/{victim.name}/{done}", b"")
                        done += 1
                    except (OutcomeUnknown, Unavailable):
                        continue
            three.restart(victim)
            await asyncio.to_thread(three.wait)
        wanted = {f"w/{member.name}/{number}" for member in three.members for number in range(5)}
        seen: list[str] = []
        async with asyncio.timeout(WAIT_S):
            while not wanted <= set(seen):
                seen += [event.entry.key for event in await anext(watch.__aiter__())]


@needs_etcd
async def test_a_lost_majority_is_noticed_by_watches_and_refused_by_reads(
    three: EtcdCluster, troubles: Troubles
) -> None:
    """Without the header that asks for a leader, the watch would be silent for ever."""
    leader = await asyncio.to_thread(three.leader)
    survivor = next(member for member in three.members if member is not leader)
    async with opened((survivor.url,), troubles, deadline_s=2.0, pulse_s=600.0) as store:
        watch = await store.watch("w/")
        await store.put("w/a", b"1")
        for member in three.members:
            if member is not survivor:
                member.kill()
        with pytest.raises((OutcomeUnknown, Unavailable)):
            await store.put("w/a", b"2")
        await until(lambda: watch.reopened > 0)
        began = time.monotonic()
        with pytest.raises(Unavailable, match="no leader"):
            await store.put("w/a", b"3")
        assert time.monotonic() - began < 2.0  # refused at once, and surely not made
        for member in three.members:
            if member is not survivor:
                three.restart(member)
        await asyncio.to_thread(three.wait)
        async with asyncio.timeout(WAIT_S):
            while True:
                with contextlib.suppress(OutcomeUnknown, Unavailable):
                    await store.put("w/a", b"4")
                    break
            values = []
            while b"4" not in values:
                values += [event.entry.value for event in await anext(watch.__aiter__())]
        assert b"3" not in values


@needs_etcd
async def test_a_change_at_a_minority_is_unknown_and_its_compare_shows_what_became_of_it(
    three: EtcdCluster, troubles: Troubles
) -> None:
    leader = await asyncio.to_thread(three.leader)
    others = [member for member in three.members if member is not leader]
    async with opened((leader.url,), troubles, deadline_s=1.5) as store:
        at = await store.put("a", b"1")
        for member in others:
            member.stop()
        with pytest.raises(OutcomeUnknown):
            await store.txn([Compare("a", "mod_revision", "==", at)], [Put("a", b"2")])
        for member in others:
            member.go_on()
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    result = await store.txn(
                        [Compare("a", "mod_revision", "==", at)], [Put("a", b"2")]
                    )
                    break
                except (OutcomeUnknown, Unavailable):
                    continue
            entry = await store.get("a")
        assert entry is not None
        # Made once: by the first attempt, or by a later one.
        assert (entry.value, entry.version) == (b"2", 2)
        assert result.revision >= at


# ---- members that are no good ----


@pytest.mark.parametrize("version", ["3.4.21", "3.5.0", "3.5.5", "3.3.27", "2.3.8", "what"])
def test_versions_that_lose_writes_are_named(version: str) -> None:
    assert version_problem(version) is not None


@pytest.mark.parametrize("version", ["3.4.22", "3.4.23", "3.5.6", "3.6.0", "3.5.21-pre", "4.0.0"])
def test_other_versions_are_used(version: str) -> None:
    assert version_problem(version) is None


async def test_a_member_with_a_version_that_loses_writes_is_refused(troubles: Troubles) -> None:
    async with Gateway.answering(version="3.5.2") as gateway:
        with pytest.raises(ConfigError, match=r"3\.5\.2"):
            await EtcdStore.open(settings((gateway.url,)), troubles)


@pytest.mark.parametrize("bad", ["not http", "not json", "wrong types", "cut", "endless headers"])
async def test_bad_bytes_are_no_answer(troubles: Troubles, bad: str) -> None:
    async with (
        Gateway.answering() as gateway,
        opened((gateway.url,), troubles, deadline_s=2.0) as store,
    ):
        gateway.bad = bad
        with pytest.raises(OutcomeUnknown):
            await store.put("a", b"1")
        with pytest.raises(Unavailable):
            await store.get("a")
        gateway.bad = ""
        assert await store.get("a") is None  # it is asked again


async def test_an_answer_that_never_ends_is_cut_at_its_bound(troubles: Troubles) -> None:
    async with Gateway.answering() as gateway, opened((gateway.url,), troubles) as store:
        gateway.bad = "endless body"
        with pytest.raises(Unavailable, match=str(ANSWER_BYTES_MAX)):
            await store.get("a")
        assert gateway.sent_bytes < 4 * ANSWER_BYTES_MAX


async def test_bad_bytes_break_a_watch_and_it_goes_on(troubles: Troubles) -> None:
    async with Gateway.answering() as gateway, opened((gateway.url,), troubles) as store:
        watch = await store.watch("w/")
        gateway.tell_streams(b"{nonsense}\n")
        await until(lambda: watch.reopened > 0)
        async with asyncio.timeout(WAIT_S):
            events = None
            while events is None:  # until the new stream is there
                gateway.tell_streams(gateway.event("w/a", b"1", 7))
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.1):
                        events = await anext(watch.__aiter__())
        assert [event.entry.value for event in events] == [b"1"]


async def test_a_slow_reader_stops_the_stream_and_gets_everything(
    troubles: Troubles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_watch, "QUEUE_REVISIONS_MAX", 4)
    async with Gateway.answering() as gateway, opened((gateway.url,), troubles) as store:
        watch = await store.watch("w/")
        for number in range(50):
            gateway.tell_streams(gateway.event("w/a", b"%d" % number, 10 + number))
            await asyncio.sleep(0.002)
        assert watch._is_paused
        async with asyncio.timeout(WAIT_S):
            seen = [(await anext(watch.__aiter__()))[0].entry.value for _ in range(50)]
        assert seen == [b"%d" % number for number in range(50)]


async def test_a_revision_in_fragments_comes_whole(troubles: Troubles) -> None:
    async with Gateway.answering() as gateway, opened((gateway.url,), troubles) as store:
        watch = await store.watch("w/")
        gateway.tell_streams(gateway.event("w/a", b"1", 9, fragment=True))
        gateway.tell_streams(gateway.event("w/b", b"2", 9))
        async with asyncio.timeout(WAIT_S):
            events = await anext(watch.__aiter__())
        assert [event.entry.key for event in events] == ["w/a", "w/b"]


async def test_calls_beyond_the_connections_wait_and_none_is_lost(
    troubles: Troubles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_members, "CONNECTIONS_MAX", 2)
    async with Gateway.answering() as gateway, opened((gateway.url,), troubles) as store:
        assert await asyncio.gather(*(store.get(f"k{n}") for n in range(40))) == [None] * 40
        assert gateway.connections_max <= 2 + 1


@needs_etcd
async def test_a_lease_that_is_gone_is_not_found_and_writes_nothing(
    one: EtcdCluster, troubles: Troubles
) -> None:
    async with opened(one.urls, troubles) as store:
        lease = await store.grant(60)
        await store.revoke(lease)
        with pytest.raises(NotFound):
            await store.keep_alive(lease)
        with pytest.raises(NotFound):
            await store.txn((), [Put("a", b""), Put("b", b"", lease)])
        assert await store.get("a") is None
        assert await store.delete("a") == 0
        await store.write([Delete("a")])
