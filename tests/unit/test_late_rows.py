"""Clients that went a moment ago: what is written of them, when, and how much at once."""

from __future__ import annotations

import asyncio

import pytest

from onelog.broker import late_rows
from onelog.broker.late_rows import LateRows


class Written:
    """Notes which clients are written, and how many at once."""

    def __init__(self) -> None:
        self.clients: list[str] = []
        self.under_way = 0
        self.most = 0
        self.changed = asyncio.Event()
        self.may = asyncio.Event()
        self.may.set()

    async def write(self, client_id: str) -> None:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await self.may.wait()
        await asyncio.sleep(0)
        self.under_way -= 1
        self.clients.append(client_id)
        self.changed.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(30):
            while len(self.clients) < count:
                self.changed.clear()
                await self.changed.wait()


async def test_who_went_first_is_written_first_and_only_so_many_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(late_rows, "LATE_S", 0.0)
    monkeypatch.setattr(late_rows, "AT_ONCE", 3)
    written = Written()
    late = LateRows(written.write)
    for number in range(10):
        late.add(f"c{number}")
    late.forget("c4")
    await written.until(9)
    assert written.clients == [f"c{number}" for number in range(10) if number != 4]
    assert written.most == 3
    late.add("c4")  # one that comes when all was over
    await written.until(10)
    await late.close()


async def test_who_goes_again_has_one_place_and_waits_anew() -> None:
    written = Written()
    late = LateRows(written.write)
    for name in ("a", "b", "a"):
        late.add(name)
    await asyncio.sleep(0)
    assert written.clients == []
    await late.close()
    assert written.clients == ["b", "a"]


async def test_the_end_waits_for_what_is_being_written_and_writes_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(late_rows, "LATE_S", 0.0)
    written = Written()
    written.may.clear()
    late = LateRows(written.write)
    late.add("a")
    async with asyncio.timeout(30):
        while not written.under_way:  # noqa: ASYNC110
            await asyncio.sleep(0)
    monkeypatch.setattr(late_rows, "LATE_S", 3600.0)
    late.add("b")
    closing = asyncio.create_task(late.close())
    await asyncio.sleep(0)
    assert not closing.done()
    written.may.set()
    await closing
    assert written.clients == ["a", "b"]
