"""Sessions: one connection per client, takeover, expiry by timer and across restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import NotAuthorized, StorageFull
from onelog.broker import EARLIEST, LOCAL, Broker, Session, SessionRecord
from onelog.broker.sessions import NEVER_MS
from tests.support.brokers import running, say


class Peer:
    """A connection that notes when it is taken over."""

    def __init__(self) -> None:
        self.taken_over = 0
        self.session: Session | None = None

    async def on_takeover(self) -> None:
        self.taken_over += 1


async def attach(
    broker: Broker,
    peer: Peer,
    *,
    clean: bool = False,
    expiry_ms: int = NEVER_MS,
    owner: str = "ann",
) -> Session:
    peer.session = await broker.sessions.attach(
        "client",
        protocol="test",
        owner=owner,
        expiry_ms=expiry_ms,
        clean=clean,
        on_takeover=peer.on_takeover,
    )
    return peer.session


async def give_cursor(broker: Broker, session: Session, name: str = "s") -> None:
    """A durable cursor that ends with the session."""
    await broker.cursors.open_session(name, ["t"], start=EARLIEST, principal=LOCAL)
    record = msgspec.structs.replace(session.record, cursors=(name,))
    await broker.sessions.update(session, record)


def watch_end(broker: Broker) -> asyncio.Event:
    """Set when a session has ended and is forgotten."""
    ended = asyncio.Event()
    real = broker.sessions._finish

    async def finish(record: SessionRecord) -> None:
        await real(record)
        ended.set()

    broker.sessions._finish = finish  # type: ignore[method-assign]
    return ended


async def test_a_second_connection_takes_over_and_the_first_is_told(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        one, two = Peer(), Peer()
        first = await attach(broker, one)
        await give_cursor(broker, first)
        second = await attach(broker, two)
        assert (one.taken_over, two.taken_over) == (1, 0)
        assert second.resumed
        assert second.record.cursors == ("s",)
        await broker.sessions.detach(first)  # it comes too late to matter
        await broker.sessions.update(first, msgspec.structs.replace(first.record, body=b"old"))
        record = broker.sessions.get("client")
        assert record is not None
        assert record.body == b""
        assert record.detached_at_ms is None
        assert broker.cursors.kept("s") is not None
        assert broker.sessions.takeovers == 1


async def test_connections_that_attach_at_once_take_over_one_after_the_other(
    tmp_path: Path,
) -> None:
    """Two never speak for one client, also while the state of an older one is being ended."""
    async with running(tmp_path) as broker:
        session = await attach(broker, Peer())
        await give_cursor(broker, session)
        await broker.sessions.detach(session)
        peers = [Peer() for _ in range(5)]
        await asyncio.gather(*(attach(broker, peer, clean=True) for peer in peers))
        assert [peer.taken_over for peer in peers] == [1, 1, 1, 1, 0]
        assert broker.sessions._attached["client"] is peers[-1].session
        assert not broker.sessions._turns


async def test_a_takeover_may_wait_for_the_old_connection_to_detach(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        old = Peer()
        session = await attach(broker, old)

        async def let_go() -> None:
            await broker.sessions.detach(session)

        session.on_takeover = let_go
        new = await asyncio.wait_for(attach(broker, Peer()), 5)
        assert new.resumed


async def test_a_clean_start_ends_the_old_session_and_its_cursors(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        first = await attach(broker, Peer())
        await give_cursor(broker, first)
        second = await attach(broker, Peer(), clean=True)
        assert not second.resumed
        assert second.record.cursors == ()
        assert broker.cursors.names() == []


async def test_a_session_without_expiry_ends_with_its_connection(tmp_path: Path) -> None:
    """Also when another connection takes over."""
    async with running(tmp_path) as broker:
        for ends_by_takeover in (False, True):
            session = await attach(broker, Peer(), expiry_ms=0)
            await give_cursor(broker, session)
            if ends_by_takeover:
                again = await attach(broker, Peer())
                assert not again.resumed
                await broker.sessions.detach(again, expiry_ms=0)
            else:
                await broker.sessions.detach(session)
            assert broker.cursors.names() == []
            assert broker.sessions.get("client") is None


async def test_a_session_expires_by_its_timer_and_takes_its_cursors_along(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        session = await attach(broker, Peer(), expiry_ms=1)
        await give_cursor(broker, session)
        ended = watch_end(broker)
        await broker.sessions.detach(session)
        await asyncio.wait_for(ended.wait(), 5)
        assert broker.sessions.get("client") is None
        assert broker.cursors.names() == []
        again = await attach(broker, Peer())
        assert not again.resumed


async def test_a_client_that_comes_back_in_time_stops_the_timer(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        session = await attach(broker, Peer(), expiry_ms=60_000)
        await give_cursor(broker, session)
        await broker.sessions.detach(session)
        assert len(broker.sessions._timers) == 1
        again = await attach(broker, Peer(), expiry_ms=60_000)
        assert again.resumed
        assert not broker.sessions._timers
        broker.sessions._expire(session.record)  # the timer had fired already
        await asyncio.gather(*broker.sessions._tasks)
        assert broker.sessions.get("client") is not None
        assert broker.cursors.kept("s") is not None


@pytest.mark.parametrize("away_s", [1, 100])
async def test_the_time_that_the_broker_was_away_counts(tmp_path: Path, away_s: int) -> None:
    clock = ManualClock()
    async with running(tmp_path, clock=clock) as broker:
        session = await attach(broker, Peer(), expiry_ms=50_000)
        await give_cursor(broker, session)
        await broker.sessions.detach(session)
    clock.advance(away_s)
    async with running(tmp_path, clock=clock) as broker:
        if away_s == 100:
            async with asyncio.timeout(5):  # it may be over before anybody can ask to be told
                while broker.sessions.get("client") is not None:  # noqa: ASYNC110
                    await asyncio.sleep(0.001)
            assert broker.cursors.names() == []
        else:
            again = await attach(broker, Peer(), expiry_ms=50_000)
            assert again.resumed
            assert again.record.cursors == ("s",)


async def test_a_session_that_was_attached_when_the_broker_went_is_kept(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await say(broker, "t", "1")
        session = await attach(broker, Peer(), expiry_ms=50_000)
        await give_cursor(broker, session)
    async with running(tmp_path) as broker:
        again = await attach(broker, Peer(), expiry_ms=50_000)
        assert again.resumed
        cursor = await broker.cursors.open_session("s", ["t"], principal=LOCAL)
        assert len(cursor.fetch()) == 1


async def test_a_session_whose_cursors_cannot_be_ended_stays_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cursors without an owner would pin the log for ever."""
    async with running(tmp_path) as broker:
        session = await attach(broker, Peer(), expiry_ms=50_000)
        await give_cursor(broker, session)

        async def full(_name: str) -> None:
            raise StorageFull("no room")

        monkeypatch.setattr(broker.cursors, "delete", full)
        with pytest.raises(StorageFull):
            await broker.sessions.detach(session, expiry_ms=0)
        monkeypatch.undo()
        assert broker.sessions.get("client") is not None
        assert broker.cursors.kept("s") is not None
        await attach(broker, Peer(), clean=True)
        assert broker.cursors.names() == []


@pytest.mark.parametrize("clean", [False, True])
async def test_a_session_is_its_owners_and_nobody_elses(tmp_path: Path, clean: bool) -> None:
    async with running(tmp_path) as broker:
        mine, other = Peer(), Peer()
        session = await attach(broker, mine)
        for _attached in (True, False):
            with pytest.raises(NotAuthorized):
                await attach(broker, other, owner="bob", clean=clean)
            await broker.sessions.detach(session)
        assert mine.taken_over == 0
        record = broker.sessions.get("client")
        assert record is not None
        assert record.owner == "ann"
    async with running(tmp_path) as broker:  # after a restart, too
        with pytest.raises(NotAuthorized):
            await attach(broker, other, owner="bob", clean=clean)
        assert (await attach(broker, mine)).resumed


async def test_a_session_of_before_owners_were_kept_is_the_first_ones_who_comes(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        old = SessionRecord(client_id="client", protocol="test", expiry_ms=NEVER_MS)
        body = msgspec.json.decode(msgspec.json.encode(old))
        del body["owner"]
        await broker.store.put("sessions/client", msgspec.json.encode(body))
    async with running(tmp_path) as broker:
        session = await attach(broker, Peer(), owner="bob")
        assert session.resumed
        await broker.sessions.detach(session)
        with pytest.raises(NotAuthorized):
            await attach(broker, Peer(), owner="ann")


async def test_a_session_that_ended_leaves_its_client_id_to_everybody(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.sessions.detach(await attach(broker, Peer(), expiry_ms=0))
        assert not (await attach(broker, Peer(), owner="bob")).resumed
