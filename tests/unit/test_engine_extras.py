"""Where RocksDB is not installed: who does not need it does not notice, who does is told."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

import pytest

from onelog import embedded
from onelog.base.errors import ConfigError, StreamNotFound
from onelog.broker import LOCAL, Message, StreamConfig

KV = StreamConfig(name="kv", captures=("kv/#",), engine="kv")


@contextlib.contextmanager
def no_rocksdb(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if `rocksdict` had never been installed, and nothing of ours had seen it."""
    with monkeypatch.context() as patched:
        for name in [row for row in sys.modules if row.startswith("onelog.storage.kv")]:
            patched.delitem(sys.modules, name)
        patched.setitem(sys.modules, "rocksdict", None)
        yield


async def test_without_rocksdb_a_stream_of_kv_is_refused_and_leaves_nothing(tmp_path, monkeypatch):
    with no_rocksdb(monkeypatch):
        for _ in range(2):  # the second start finds nothing of it
            async with embedded.open(tmp_path) as broker:
                with pytest.raises(ConfigError, match=r"pip install 'onelog\[rocksdb\]'"):
                    await broker.streams.create(KV)
                with pytest.raises(StreamNotFound):
                    broker.streams.get("kv")
                await broker.publish(Message("kv/1", b"x"), principal=LOCAL)


async def test_without_rocksdb_data_of_kv_is_not_opened_and_not_touched(tmp_path, monkeypatch):
    async with embedded.open(tmp_path) as broker:
        await broker.streams.create(KV)
        await broker.publish(Message("kv/1", b"x"), principal=LOCAL)
    files = {path: path.read_bytes() for path in (tmp_path / "kv").rglob("*") if path.is_file()}
    with no_rocksdb(monkeypatch), pytest.raises(ConfigError, match="rocksdict is not installed"):
        async with embedded.open(tmp_path):
            pass
    assert files == {
        path: path.read_bytes() for path in (tmp_path / "kv").rglob("*") if path in files
    }
    async with embedded.open(tmp_path) as broker:
        assert broker.streams.get("kv").partitions[0].log.end_offset == 1
