"""Pages: bounded lists, and the token by which the next page goes on.

Rules: a list is ordered by a key that a row never changes, so a page goes on after the last key of
the page before, whatever came and went meanwhile. Rows are chosen in pieces (`LoopShare`). The
token is opaque; one that we did not make is refused.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Sequence
from heapq import nsmallest
from itertools import islice
from typing import Annotated, Any, Final, Generic, TypeVar

import msgspec
from msgspec import Meta

from onelog.admin.api.declaring import ApiInput
from onelog.admin.api.share import LoopShare
from onelog.admin.contract import PAGE_DEFAULT, PAGE_MAX
from onelog.base.errors import InvalidRequest

CURSOR_CHARS_MAX: Final = 8192
_CHUNK: Final = 200
"""Rows that are compared before others may have their turn."""

T = TypeVar("T")
R = TypeVar("R")
K = TypeVar("K")


class Page(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """A page of a list; `next_cursor` is null on the last one."""

    items: list[T]
    next_cursor: str | None


class PageQuery(ApiInput, frozen=True, kw_only=True):
    """Which page."""

    limit: Annotated[int, Meta(ge=1, le=PAGE_MAX, description="How many items, at most.")] = (
        PAGE_DEFAULT
    )
    cursor: Annotated[
        str,
        Meta(
            max_length=CURSOR_CHARS_MAX,
            description="`next_cursor` of the page before; empty: the first page.",
        ),
    ] = ""


class SearchQuery(PageQuery, frozen=True, kw_only=True):
    """Which page of the rows that match."""

    search: Annotated[
        str,
        Meta(max_length=1024, description="A part of a name, in any case; empty: everything."),
    ] = ""


def encode_key(key: object) -> str:
    """The token of a key."""
    return base64.urlsafe_b64encode(msgspec.json.encode(key)).rstrip(b"=").decode()


def decode_key(token: str, kind: type[K]) -> K | None:
    """The key of a token; None for the first page. Raises InvalidRequest."""
    if not token:
        return None
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), b"-_", validate=True)
        return msgspec.json.decode(raw, type=kind)
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise InvalidRequest(
            f"the cursor {token[:40]!r} is not known: use next_cursor of the page before, or none"
        ) from None


def full_page(query: PageQuery, rows: Sequence[R], key: Callable[[R], object]) -> Page[R]:
    """A page of rows, of which there is one more than asked for if another page follows."""
    items = list(rows[: query.limit])
    more = len(rows) > query.limit
    return Page(items=items, next_cursor=encode_key(key(items[-1])) if more else None)


async def choose(
    share: LoopShare,
    rows: Iterable[R],
    query: PageQuery,
    key: Callable[[R], Any],
    *,
    kind: Any,
    wanted: Callable[[R], bool] = lambda _row: True,
) -> list[R]:
    """The rows of a page in the order of their keys, and one more if another page follows.

    Other requests have their turn meanwhile. So rows that come lazily have to come from a copy.
    """
    after = decode_key(query.cursor, kind)
    source = iter(rows)
    best: list[R] = []
    while chunk := list(islice(source, _CHUNK)):
        fresh = [row for row in chunk if (after is None or key(row) > after) and wanted(row)]
        best = nsmallest(query.limit + 1, best + fresh, key=key) if fresh else best
        await share.breathe()
    return best


def contains(search: str, *texts: str | None) -> bool:
    """Whether one of the texts has a part in it, in any case."""
    part = search.casefold()
    return not part or any(part in text.casefold() for text in texts if text)
