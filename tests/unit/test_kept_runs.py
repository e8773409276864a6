"""Rows that come while a batch is being made durable are one batch."""

from __future__ import annotations

import asyncio

import pytest

from onelog.base.errors import NotOwner, StateUnknown
from onelog.broker.kept import KeptTable
from onelog.broker.kept_runs import BYTES_MAX, KeptRuns
from onelog.broker.sessions import NEVER_MS
from tests.support.brokers import running


class SlowTable:
    """A table whose batches are durable when the test says so."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[bytes, bytes | None]]] = []
        self.futures: list[asyncio.Future[None]] = []
        self.refusal: Exception | None = None

    def put(self, rows) -> asyncio.Future[None]:
        if self.refusal is not None:
            raise self.refusal
        self.batches.append(list(rows))
        self.futures.append(asyncio.get_running_loop().create_future())
        return self.futures[-1]


async def turn() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_row_that_comes_alone_is_written_at_once():
    table = SlowTable()
    runs = KeptRuns(table.put)
    for count in (1, 2):
        put = runs.put(0, b"a", b"1")
        assert len(table.batches) == count
        table.futures[-1].set_result(None)
        await put
        await turn()


async def test_rows_that_come_meanwhile_are_one_batch_in_their_order():
    table = SlowTable()
    runs = KeptRuns(table.put)
    puts = [runs.put(0, b"a", b"%d" % number) for number in range(3)]
    puts.append(runs.put(0, b"b", None))
    assert table.batches == [[(b"a", b"0")]]
    table.futures[0].set_result(None)
    await turn()
    assert table.batches[1] == [(b"a", b"1"), (b"a", b"2"), (b"b", None)]
    assert [put.done() for put in puts] == [True, False, False, False], "not durable yet"
    table.futures[1].set_result(None)
    await asyncio.gather(*puts)


async def test_shards_do_not_wait_for_each_other():
    table = SlowTable()
    runs = KeptRuns(table.put)
    runs.put(0, b"a", b"1")
    runs.put(1, b"b", b"1")
    assert len(table.batches) == 2


async def test_a_failure_ends_those_of_its_batch_only():
    table = SlowTable()
    runs = KeptRuns(table.put)
    first, second = runs.put(0, b"a", b"1"), runs.put(0, b"b", b"1")
    table.futures[0].set_exception(StateUnknown("damaged"))
    await turn()
    third = runs.put(0, b"c", b"1")
    with pytest.raises(StateUnknown):
        await first
    table.futures[1].set_exception(StateUnknown("damaged too"))
    await turn()
    with pytest.raises(StateUnknown, match="too"):
        await second
    table.futures[2].set_result(None)
    await third


async def test_a_refusal_ends_those_who_wait_and_nobody_else():
    table = SlowTable()
    runs = KeptRuns(table.put)
    first, others = runs.put(0, b"a", b"1"), [runs.put(0, name, b"1") for name in (b"b", b"c")]
    table.refusal = NotOwner("another node leads")
    table.futures[0].set_result(None)
    await first
    for put in others:
        with pytest.raises(NotOwner):
            await put
    table.refusal = None
    runs.put(0, b"d", b"1")
    assert table.batches[-1] == [(b"d", b"1")]


async def test_one_who_gives_up_takes_nobody_along():
    table = SlowTable()
    runs = KeptRuns(table.put)
    first, second, third = (runs.put(0, name, b"1") for name in (b"a", b"b", b"c"))
    second.cancel()
    first.cancel()
    await turn()
    assert table.batches[1] == [(b"b", b"1"), (b"c", b"1")], "written all the same, as before"
    table.futures[1].set_result(None)
    await third


async def test_a_batch_is_bounded():
    table = SlowTable()
    runs = KeptRuns(table.put)
    row = b"x" * (BYTES_MAX // 2)
    puts = [runs.put(0, b"%d" % number, row) for number in range(6)]
    for number in range(4):
        if number < len(table.futures):
            table.futures[number].set_result(None)
        await turn()
    assert [len(batch) for batch in table.batches] == [1, 2, 2, 1]
    await asyncio.gather(*puts)


async def test_the_sessions_of_clients_that_come_at_once_are_few_batches(tmp_path, monkeypatch):
    """A batch for the first, and one for all others."""
    batches: list[int] = []
    put = KeptTable.put

    def counted(table, rows):
        batches.append(len(rows))
        return put(table, rows)

    async def nobody() -> None: ...

    async with running(tmp_path) as broker:

        def attach(name: str):
            return broker.sessions.attach(
                name, protocol="test", owner="ann", expiry_ms=NEVER_MS, clean=False,
                on_takeover=nobody,
            )  # fmt: skip

        monkeypatch.setattr(KeptTable, "put", counted)
        await asyncio.gather(*(attach(f"c{number}") for number in range(100)))
        monkeypatch.undo()
        assert batches == [1, 99]
    async with running(tmp_path) as broker:
        assert all(broker.sessions.keeps(f"c{number}") for number in range(100))
