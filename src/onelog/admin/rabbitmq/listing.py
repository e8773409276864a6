"""Lists: columns, order, pages, written in turns.

Rules: rows are made, cut to the columns and encoded a few at a time, and others have their turn
between, so that a hundred thousand queues do not hold the loop. A filter is a part of a name;
regular expressions are refused, since one of them can hold the loop for hours.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from onelog.admin.rabbitmq.requests import BadRequest
from onelog.base.errors import InvalidRequest

Row = dict[str, Any]

Rows = Iterable[Row] | AsyncIterable[Row]
TURN: Final = 100
"""Rows that are made before others have their turn."""
PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 500
COLUMNS_MAX: Final = 200


class PageError(InvalidRequest):
    """Pages that cannot be; `code` is RabbitMQ's word for why."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def answer(body: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON answer."""
    return _response(msgspec.json.encode(body), status, headers)


def _response(data: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    all_headers = {"cache-control": "no-cache", **(headers or {})}
    return Response(data, status, media_type="application/json", headers=all_headers)


def one(request: Request, row: Row) -> Response:
    """One object, cut to the columns that are asked for."""
    return answer(_cut(row, _columns(request)))


async def many(request: Request, rows: Rows, *, paged: bool = False) -> Response:
    """A list, in the order and with the columns that are asked for, in pages where it has such."""
    columns = _columns(request)
    page = _page(request) if paged and "page" in request.query_params else None
    sort = request.query_params.get("sort", "")
    if page is None and not sort:
        return _response(_list([encoded async for encoded in _encoded(rows, columns)]))
    found = [row async for row in _in_turns(rows)]
    total = len(found)
    wanted = request.query_params.get("name", "").lower() if page is not None else ""
    if wanted:
        found = [row for row in found if wanted in str(row.get("name", "")).lower()]
    if sort:
        reverse = request.query_params.get("sort_reverse") == "true"
        found.sort(key=lambda row: _order(_field(row, sort.split("."))), reverse=reverse)
    if page is None:
        return _response(_list([encoded async for encoded in _encoded(found, columns)]))
    number, size = page
    count = -(-len(found) // size)
    if number > max(count, 1):
        raise PageError(
            "page_out_of_range",
            f"Page out of range, page: {number} page size: {size}, len: {len(found)}",
        )
    items = found[(number - 1) * size : number * size]
    return answer(
        {
            "total_count": total,
            "item_count": len(items),
            "filtered_count": len(found),
            "page": number,
            "page_size": size,
            "page_count": count,
            "items": [_cut(row, columns) for row in items],
        }
    )


async def _in_turns(rows: Rows) -> AsyncIterator[Row]:
    if isinstance(rows, AsyncIterable):
        async for row in rows:
            yield row
        return
    for number, row in enumerate(rows, 1):
        yield row
        if number % TURN == 0:
            await asyncio.sleep(0)


async def _encoded(rows: Rows, columns: list[list[str]]) -> AsyncIterator[bytes]:
    async for row in _in_turns(rows):
        yield msgspec.json.encode(_cut(row, columns))


def _list(encoded: list[bytes]) -> bytes:
    return b"[" + b",".join(encoded) + b"]"


def _columns(request: Request) -> list[list[str]]:
    names = request.query_params.get("columns", "").split(",", COLUMNS_MAX)[:COLUMNS_MAX]
    return [name.split(".") for name in names if name]


def _field(row: Any, path: list[str]) -> Any:
    for name in path:
        if not isinstance(row, dict) or name not in row:
            return None
        row = row[name]
    return row


def _cut(row: Row, columns: list[list[str]]) -> Row:
    """The row with only these columns; `a.b` means `b` of `a`."""
    if not columns:
        return row
    found: Row = {}
    for path in columns:
        value = _field(row, path)
        if value is None and not (len(path) == 1 and path[0] in row):
            continue
        inner = found
        for name in path[:-1]:
            inner = inner.setdefault(name, {})
        inner[path[-1]] = value
    return found


def _order(value: Any) -> tuple[int, Any]:
    """A key for sorting whatever a column holds: nothing, numbers, texts."""
    if value is None:
        return 0, 0
    if isinstance(value, int | float):
        return 1, value
    return 2, str(value)


def _page(request: Request) -> tuple[int, int]:
    query = request.query_params
    if query.get("use_regex") == "true":
        raise BadRequest("regular expressions are not taken here; name= finds parts of names")
    number, size = query["page"], query.get("page_size", str(PAGE_DEFAULT))
    if not (_is_number(number) and _is_number(size)):
        raise BadRequest("Pagination parameters are invalid")
    if int(number) < 1 or not 1 <= int(size) <= PAGE_MAX:
        raise PageError(
            "invalid_pagination_parameters",
            f"Invalid pagination parameters: page number {number}, page size {size}",
        )
    return int(number), int(size)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
