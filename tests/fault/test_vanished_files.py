"""What does the broker do when files that held records are gone: are they taken for new? (I9)

A partition that once held durable records and is empty now is damaged, whether its directory, its
files or the whole engine's directory went. What never held anything lost nothing.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from onelog.assembly import open_broker, open_store
from onelog.base import faults
from onelog.base.clock import SystemClock
from onelog.base.errors import (
    Conflict,
    PartitionCorrupt,
    StateUnknown,
    StorageError,
    Unavailable,
)
from onelog.broker import EARLIEST, LOCAL, Broker, Durability, KeptTable, Message, StreamConfig
from onelog.broker.shards import STATE_UNKNOWN
from onelog.log.begun import FAILED
from onelog.security.authenticator import Authenticator
from tests.fault.test_internal_damage import QUIET, USERS, running, write_rows

pytestmark = pytest.mark.fault


def drop_partition(data: Path, stream: str) -> None:
    (path,) = data.glob(f"segment/{stream}-*/0")
    shutil.rmtree(path)


def drop_stream(data: Path, stream: str) -> None:
    (path,) = data.glob(f"segment/{stream}-*")
    shutil.rmtree(path)


def drop_files(data: Path, stream: str) -> None:
    (path,) = data.glob(f"segment/{stream}-*/0")
    for file in path.iterdir():
        file.unlink()


def drop_all(data: Path, _stream: str) -> None:
    shutil.rmtree(data / "segment")


WAYS = [drop_partition, drop_stream, drop_files, drop_all]
SYNCED = StreamConfig(name="s", captures=("s/#",), durability=Durability.FSYNC)
Vanishing = Callable[[Path, str], None]


@pytest.mark.parametrize("vanish", WAYS)
@pytest.mark.parametrize("stream", USERS)
async def test_a_protocol_does_not_begin_on_state_whose_files_are_gone(
    stream: str, vanish: Vanishing, tmp_path: Path
) -> None:
    await write_rows(tmp_path, stream)
    vanish(tmp_path, stream)
    for _restart in range(2):  # nothing that a start does makes it look sound to the next one
        async with running(tmp_path) as broker:
            authenticator = await Authenticator.open(broker.store, SystemClock())
            with pytest.raises(Unavailable, match=rf"what {stream} keeps is not known"):
                await USERS[stream](broker, authenticator)
            assert stream in {row.stream for row in broker.stopped_partitions()}
            await authenticator.close()


@pytest.mark.parametrize("vanish", WAYS[:3])
async def test_vanished_cursors_are_not_known_and_topics_work(
    vanish: Vanishing, tmp_path: Path
) -> None:
    async with running(tmp_path) as broker:
        await broker.cursors.open_offset("c", ["a/#"], start=EARLIEST, principal=LOCAL)
    vanish(tmp_path, "~cursors")
    async with running(tmp_path) as broker:
        assert [row.kind for row in broker.troubles.standing()] == [STATE_UNKNOWN]
        with pytest.raises(StateUnknown):
            await broker.cursors.open_offset("c", ["a/#"], start=EARLIEST, principal=LOCAL)
        await broker.publish(Message("a/b", b"2"), principal=LOCAL)


@pytest.mark.parametrize("engine", ["segment", "kv"])
async def test_an_ordinary_stream_whose_files_are_gone_is_stopped_and_the_others_run(
    engine: str, tmp_path: Path
) -> None:
    async with running(tmp_path) as broker:
        for name in ("lost", "idle"):
            await broker.streams.create(
                StreamConfig(name=name, captures=(f"{name}/#",), engine=engine)
            )
        await broker.publish(Message("lost/1", b"x"), principal=LOCAL)
        await broker.publish(Message("other", b"x"), principal=LOCAL)
    if engine == "kv":
        shutil.rmtree(tmp_path / "kv")
    else:
        for name in ("lost", "idle"):
            drop_stream(tmp_path, name)
    async with running(tmp_path) as broker:
        with pytest.raises(PartitionCorrupt, match=r"lost/0 held records, and its files are gone"):
            await broker.publish(Message("lost/1", b"y"), principal=LOCAL)
        assert {row.stream for row in broker.stopped_partitions()} == {"lost"}
        await broker.publish(
            Message("idle/1", b"it held nothing, so it lost nothing"), principal=LOCAL
        )
        await broker.publish(Message("other", b"y"), principal=LOCAL)
    assert not list(tmp_path.glob("segment/lost-*")), "nothing is made where the files were"


async def test_files_that_are_put_back_are_served_again(tmp_path: Path) -> None:
    await write_rows(tmp_path, "~wills")
    (path,) = tmp_path.glob("segment/~wills-*")
    path.rename(tmp_path / "aside")
    async with running(tmp_path) as broker:
        with pytest.raises(StateUnknown):
            await KeptTable.open(broker.streams, SystemClock(), "~wills")
    (tmp_path / "aside").rename(path)
    async with running(tmp_path) as broker:
        table = await KeptTable.open(broker.streams, SystemClock(), "~wills")
        assert len(dict(table.rows())) == 20


async def test_a_data_directory_of_an_older_version_opens_and_is_guarded_from_then_on(
    tmp_path: Path,
) -> None:
    await write_rows(tmp_path, "~wills")
    store = await open_store(tmp_path, SystemClock())
    assert await store.delete("begun/", prefix=True) > 0  # as it was before there were such rows
    await store.close()
    async with running(tmp_path) as broker:
        table = await KeptTable.open(broker.streams, SystemClock(), "~wills")
        assert len(dict(table.rows())) == 20
    drop_stream(tmp_path, "~wills")
    async with running(tmp_path) as broker:
        with pytest.raises(StateUnknown):
            await KeptTable.open(broker.streams, SystemClock(), "~wills")


async def test_it_is_written_down_with_the_first_sync_and_not_only_at_a_clean_stop(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        stream = await broker.streams.create(SYNCED)
        await broker.publish(Message("s/1", b"x"), principal=LOCAL)
        await broker.streams.begun.settle()
        assert await broker.store.get(f"begun/{stream.record.id}/0") is not None


async def test_what_cannot_be_written_down_is_a_trouble_and_comes_with_the_next(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        stream = await broker.streams.create(SYNCED)
        other = await broker.streams.create(
            StreamConfig(name="t", captures=("t/#",), durability=Durability.FSYNC)
        )
        faults.arm("metadata.commit", faults.fail_with(errno.ENOSPC))
        await broker.publish(Message("s/1", b"x"), principal=LOCAL)
        await broker.streams.begun.settle()
        faults.disarm()
        assert broker.troubles.count(FAILED) == 1
        await broker.publish(Message("t/1", b"x"), principal=LOCAL)
        await broker.streams.begun.settle()
        for row in (stream, other):
            assert await broker.store.get(f"begun/{row.record.id}/0") is not None


async def test_a_deleted_stream_may_come_again_and_leaves_no_row(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.streams.create(SYNCED)
        await broker.publish(Message("s/1", b"x"), principal=LOCAL)
        stream_id = broker.streams.get("s").record.id
        await broker.streams.delete("s")
        assert not (await broker.store.range(f"begun/{stream_id}/")).entries
        await broker.streams.create(SYNCED)
    async with running(tmp_path) as broker:
        assert not broker.stopped_partitions()


# -- the way out


async def test_a_damaged_stream_starts_over_when_it_is_told_to_and_old_positions_do_not_count(
    tmp_path: Path,
) -> None:
    await write_rows(tmp_path, "~wills")
    drop_files(tmp_path, "~wills")
    async with running(tmp_path) as broker:
        await broker.streams.start_over("~wills")
        with pytest.raises(StateUnknown):  # nothing changes before the restart
            await KeptTable.open(broker.streams, SystemClock(), "~wills")
        old = broker.streams.get("~wills").record.id
    for _restart in range(2):
        async with running(tmp_path) as broker:
            table = await KeptTable.open(broker.streams, SystemClock(), "~wills")
            await table.put([(b"key", b"value")])
            assert set(dict(table.rows())) <= {b"key"}
            assert broker.streams.get("~wills").record.id != old
            assert [key.stream_id for key in broker.streams.orphans] == [old]


async def test_a_sound_stream_does_not_start_over(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        with pytest.raises(Conflict, match="is sound"):
            await broker.streams.start_over("main")


async def test_a_stream_in_memory_that_was_widened_tells_its_topics_after_a_restart(
    tmp_path: Path,
) -> None:
    """Where records began to carry their topic is an offset of records that are gone."""
    config = StreamConfig(name="s", captures=("s",), engine="memory")
    async with running(tmp_path) as broker:
        stream = await broker.streams.create(config)
        for _ in range(3):
            await broker.publish(Message("s", b"x"), principal=LOCAL)
        await broker.streams.alter(StreamConfig(name="s", captures=("s", "t"), engine="memory"))
    async with running(tmp_path) as broker:
        await broker.publish(Message("t", b"x"), principal=LOCAL)
        stream = broker.streams.get("s")
        assert stream.tags_topics
        assert stream.fixed_topic_at(0, 0) is None


# -- the store


@pytest.mark.parametrize("empty", [False, True])
async def test_data_without_its_metadata_store_is_no_new_broker(
    empty: bool, tmp_path: Path
) -> None:
    async def opened() -> Broker:
        return await open_broker(tmp_path, QUIET, SystemClock())

    async with running(tmp_path) as broker:
        await broker.publish(Message("a", b"x"), principal=LOCAL)
    kept = (tmp_path / "metadata.db").read_bytes()
    (tmp_path / "metadata.db").unlink()
    if empty:
        (tmp_path / "metadata.db").touch()
    with pytest.raises(StorageError, match=r"metadata\.db is missing"):
        await opened()
    (tmp_path / "metadata.db").write_bytes(kept)
    await (await opened()).close()
