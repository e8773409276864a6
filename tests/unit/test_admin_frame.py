"""The frame of the admin API: its document, its share of the loop, its tokens for pages."""

from __future__ import annotations

import asyncio
from time import perf_counter

import pytest

from onelog.admin.api.declaring import PREFIX
from onelog.admin.api.logins import LoginSessions
from onelog.admin.api.openapi import openapi_document, operation_id
from onelog.admin.api.paging import decode_key, encode_key
from onelog.admin.api.routing import BODY_BYTES_MAX
from onelog.admin.api.share import SHARE, LoopShare
from onelog.admin.api.table import event_streams, operations
from onelog.base.clock import ManualClock
from onelog.base.errors import InvalidRequest
from tests.support.admin import admin_api, client_of, new_desk


def table():
    return operations(new_desk(), LoginSessions(ManualClock()), ManualClock())


def test_every_operation_is_in_the_document_once():
    rows = table()
    document = openapi_document("1", rows, event_streams(new_desk(), ManualClock()))
    for row in rows:
        found = document["paths"][PREFIX + row.path][row.method.lower()]
        assert found["summary"] == row.summary
        assert str(row.status) in found["responses"]
    names = [operation_id(row) for row in rows]
    assert len(set(names)) == len(names)


def test_every_reference_of_the_document_leads_somewhere():
    document = openapi_document("1", table(), event_streams(new_desk(), ManualClock()))
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}

    def references(value):
        if isinstance(value, dict):
            if "$ref" in value:
                yield value["$ref"]
            for inner in value.values():
                yield from references(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from references(inner)

    assert set(references(document)) <= known


async def test_the_document_is_served_before_anybody_logs_in():
    async with client_of(new_desk()) as client:
        answer = await client.get(f"{PREFIX}/openapi.json")
    assert answer.json()["openapi"] == "3.1.0"


@pytest.mark.parametrize("key", ["", "a/b", "ü\0", 7, [1, "x"]])
def test_a_pages_token_gives_its_key_back(key):
    assert decode_key(encode_key(key), type(key)) == key


@pytest.mark.parametrize("token", ["x", "!!!!", "e30", "ü", "IiI="])
def test_a_token_that_we_did_not_make_is_refused(token):
    with pytest.raises(InvalidRequest, match="next_cursor"):
        decode_key(token, int)


async def test_a_body_that_is_too_large_is_refused_before_it_is_read_whole(tmp_path):
    async with admin_api(tmp_path) as api:
        read = 0

        async def body():
            nonlocal read
            for _ in range(10 * BODY_BYTES_MAX // 65536):
                read += 65536
                yield bytes(65536)

        answer = await api.client.post("/api/v1/views", content=body())
        assert answer.status_code == 413
        assert read <= BODY_BYTES_MAX + 65536 * 2


async def test_work_of_the_api_takes_no_more_than_its_share_of_the_loop():
    share = LoopShare()

    async def work() -> None:
        for _ in range(4):
            until = perf_counter() + 0.001
            while perf_counter() < until:
                pass
            await share.breathe()

    async def request() -> None:
        await share.turn()
        await share.metered(work())

    began = perf_counter()
    await asyncio.gather(*(request() for _ in range(5)))
    assert share.spent_s >= 0.02
    # The last piece need not be waited for.
    assert perf_counter() - began >= (share.spent_s - 0.002) / SHARE


async def test_metered_work_hears_of_errors_and_of_its_end():
    share = LoopShare()
    waits: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def work() -> int:
        try:
            return await waits
        except ValueError:
            return -1

    task = asyncio.ensure_future(_awaited(share, work()))
    await asyncio.sleep(0)
    waits.set_exception(ValueError())
    assert await task == -1

    async def raises() -> None:
        raise KeyError

    with pytest.raises(KeyError):
        await share.metered(raises())


async def _awaited(share: LoopShare, work) -> int:
    return await share.metered(work)
