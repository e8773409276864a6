"""Sessions live in `~sessions`: those that the metadata store held before are taken over."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from onelog.base.clock import ManualClock
from onelog.base.errors import LimitExceeded, StateUnknown, StorageFull, Unavailable
from onelog.broker import LOCAL, Broker, Message, Session, SessionRecord, sessions
from onelog.broker.sessions import NEVER_MS, STREAM
from onelog.broker.shards import STATE_UNKNOWN
from onelog.log.catalog import Catalog
from onelog.metadata.local import LocalStore
from tests.support.brokers import running


def record(number: int, body: bytes = b"") -> SessionRecord:
    return SessionRecord(
        client_id=f"client-{number}",
        protocol="mqtt",
        owner="ann",
        expiry_ms=NEVER_MS,
        detached_at_ms=1,
        cursors=(f"mqtt:client-{number}",),
        body=body,
    )


async def write_as_before(path: Path, rows: list[SessionRecord]) -> None:
    """A data directory as the version before left it: rows in the store, no stream of sessions."""
    async with running(path):
        pass
    store = await LocalStore.open(path / "metadata.db", ManualClock())
    for row in rows:
        await store.put(f"sessions/{row.client_id}", msgspec.json.encode(row))
    await store.close()


async def rows_in_store(broker: Broker) -> int:
    return len((await broker.store.range("sessions/")).entries)


async def attach(broker: Broker, expiry_ms: int = NEVER_MS) -> Session:
    async def nobody_else() -> None:
        pass

    return await broker.sessions.attach(
        "c",
        protocol="mqtt",
        owner="ann",
        expiry_ms=expiry_ms,
        clean=not expiry_ms,
        on_takeover=nobody_else,
    )


async def test_sessions_of_the_version_before_are_in_the_stream_after_a_start(
    tmp_path: Path,
) -> None:
    rows = [record(number, b"b" * 1000 * number) for number in range(5)]
    await write_as_before(tmp_path, rows)
    for _start in range(2):
        async with running(tmp_path) as broker:
            assert [broker.sessions.get(row.client_id) for row in rows] == rows
            assert await rows_in_store(broker) == 0


async def test_more_old_sessions_than_one_batch_takes_are_taken_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "_CHUNK_BYTES", 500)
    rows = [record(number) for number in range(50)]
    await write_as_before(tmp_path, rows)
    async with running(tmp_path) as broker:
        assert broker.sessions.kept_count == 50
        assert broker.streams.get(STREAM).partitions[0].end_offset == 50
    async with running(tmp_path) as broker:
        assert broker.sessions.kept_count == 50


@pytest.mark.parametrize("step", ["first batch", "second batch", "removal"])
async def test_a_start_that_ends_while_sessions_are_taken_over_loses_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Whatever was reached: the next start finds every session once, as it was."""
    monkeypatch.setattr(sessions, "_CHUNK_BYTES", 500)
    rows = [record(number) for number in range(20)]
    await write_as_before(tmp_path, rows)
    with monkeypatch.context() as patched:
        if step == "removal":
            real_delete = LocalStore.delete

            async def delete(self: LocalStore, key: str, *, prefix: bool = False) -> int:
                if key == "sessions/":
                    raise Unavailable("the process ends here")
                return await real_delete(self, key, prefix=prefix)

            patched.setattr(LocalStore, "delete", delete)
        else:
            left = 0 if step == "first batch" else 1
            real_put = sessions.KeptTable.put

            def put(self: sessions.KeptTable, batch: list[sessions.KeptRow]) -> object:
                nonlocal left
                if not left:
                    raise Unavailable("the process ends here")
                left -= 1
                return real_put(self, batch)

            patched.setattr(sessions.KeptTable, "put", put)
        with pytest.raises(Unavailable, match="ends here"):
            async with running(tmp_path):
                pass
    async with running(tmp_path) as broker:
        assert [broker.sessions.get(row.client_id) for row in rows] == rows
        assert await rows_in_store(broker) == 0


async def test_a_start_without_room_for_old_sessions_keeps_them_and_takes_nobody_for_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write_as_before(tmp_path, [record(1)])

    def full(_table: sessions.KeptTable, _rows: object) -> None:
        raise StorageFull("no room")

    with monkeypatch.context() as patched:
        patched.setattr(sessions.KeptTable, "put", full)
        async with running(tmp_path) as broker:
            with pytest.raises(StateUnknown, match="make room"):
                broker.sessions.check_known()
            assert await rows_in_store(broker) == 1
    async with running(tmp_path) as broker:
        assert broker.sessions.get("client-1") == record(1)


async def test_a_broker_without_kept_sessions_makes_no_stream_for_them(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        session = await attach(broker, expiry_ms=0)
        await broker.sessions.detach(session)
        assert broker.streams.find(STREAM) is None


async def test_sessions_come_and_go_without_the_metadata_store(tmp_path: Path) -> None:
    """A store of a whole cluster takes few writes; clients come by the thousand."""
    async with running(tmp_path) as broker:
        first = await attach(broker)  # makes the stream
        before = (await broker.store.range("")).revision
        session = await attach(broker)
        assert session.resumed
        assert first.is_kept
        await broker.sessions.update(session, session.record)
        await broker.sessions.detach(session)
        assert broker.sessions.kept_count == 1
        found = await broker.store.range("")
        assert {entry.key for entry in found.entries if entry.mod_revision > before} <= {
            f"begun/{broker.streams.get(STREAM).record.id}/0"
        }


async def test_a_session_larger_than_a_row_may_be_is_refused_and_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8."""
    monkeypatch.setattr(sessions, "RECORD_BYTES_MAX", 1000)
    async with running(tmp_path) as broker:
        session = await attach(broker)
        large = msgspec.structs.replace(session.record, body=b"x" * 2000)
        with pytest.raises(LimitExceeded, match="fewer filters"):
            await broker.sessions.update(session, large)
    async with running(tmp_path) as broker:
        kept = broker.sessions.get("c")
        assert kept is not None
        assert kept.body == b""


async def test_no_session_is_taken_for_new_while_those_that_are_kept_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: damage is not emptiness; what waits in the store for the stream stays there, too."""
    await write_as_before(tmp_path, [record(1)])

    async def unreadable(_catalog: Catalog, _clock: object, name: str) -> None:
        raise StateUnknown(f"what {name} keeps is not known")

    monkeypatch.setattr(sessions.KeptTable, "make", unreadable)
    async with running(tmp_path) as broker:
        (row,) = broker.troubles.standing()
        assert (row.kind, row.place, row.blocks) == (STATE_UNKNOWN, STREAM, True)
        with pytest.raises(StateUnknown):
            await attach(broker, expiry_ms=0)
        assert await rows_in_store(broker) == 1
        await broker.publish(Message("a/b", b"works"), principal=LOCAL)


async def test_a_row_that_cannot_be_read_is_no_missing_session(tmp_path: Path) -> None:
    """I9."""
    async with running(tmp_path) as broker:
        await attach(broker)
        table = await broker.open_kept(STREAM)
        await table.put([(b"d", b"not a record")])
    async with running(tmp_path) as broker:
        with pytest.raises(StateUnknown, match="cannot be read"):
            await attach(broker)
