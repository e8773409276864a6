"""Rows that protocols keep: what was put survives a restart, the last value of a key counts."""

from __future__ import annotations

from pathlib import Path

from onelog.kernel import scan_batches
from tests.support.brokers import running


async def test_rows_survive_a_restart_and_the_last_value_of_a_key_counts(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        table = await broker.open_kept("~things")
        assert dict(table.rows()) == {}
        await table.put([(b"a", b"1"), (b"b", b"2"), (b"c", b"3")])
        await table.put([(b"a", b"4"), (b"b", None)])
    async with running(tmp_path) as broker:
        table = await broker.open_kept("~things")
        assert dict(table.rows()) == {b"a": b"4", b"c": b"3"}
        assert dict(table.rows()) == {}  # handed over once


async def test_rows_that_are_put_together_are_one_batch(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        table = await broker.open_kept("~things")
        await table.put([(b"a", b"1"), (b"b", b"2")])
        await table.put([])
        partition = broker.streams.get("~things").partitions[0]
        assert [info.count for info in scan_batches(partition.read(partition.start_offset, 1))] == [
            2
        ]
