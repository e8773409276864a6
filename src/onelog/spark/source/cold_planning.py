"""Which part of a query lies in an object store, and whether tasks read it there.

Rules:
- The broker names the rows; nothing is sampled. What lies above them, and everything if the store
  cannot be used, is read through the broker as before.
- `coldReads=auto`: tasks read a bucket if the driver can; a folder (`file://`) is the broker's.
  `store`: they read it in any case. `broker`: nobody asks for rows.
- Keys come from the options `s3.*` and the environment of the driver; where there are none, each
  executor uses its own role. The broker tells where the store is, never a key.
- Records of a fixed topic in a view get a header on their way out of the broker: a query for
  headers reads them there.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from onelog.base.errors import OnelogError
from onelog.kafka_client import Client, ColdPart
from onelog.kernel import TopicFilter
from onelog.lake.s3_access import KEYS, s3_access
from onelog.objects.rows import FOOTER_BYTES, Row
from onelog.objects.shown import StoreWords
from onelog.objects.store import StoreSettings, open_store
from onelog.spark.source.options import ColdReads
from onelog.spark.source.planning import InStore, Slice

OFFSETS_MIN: Final = 1000
"""Fewer offsets than this are fetched, wherever they lie."""
AGAIN_S: Final = 300.0
"""After so long a store that was not there, or could not be read, is tried again."""
_WORDS: Final = {
    "s3.endpoint": "aws_endpoint",
    "s3.region": "aws_region",
    "s3.access-key-id": "aws_access_key_id",
    "s3.secret-access-key": "aws_secret_access_key",
    "s3.session-token": "aws_session_token",
}

_log: Final = logging.getLogger("onelog.spark")


class ColdPlanner:
    """Finds the objects of slices, and tries whether they can be read."""

    def __init__(self, how: ColdReads, *, with_headers: bool) -> None:
        self._how = how
        self._with_headers = with_headers
        self._usable: dict[str, StoreSettings] = {}
        self._refused_at: float | None = None

    def cut(self, client: Client, slices: Iterable[Slice]) -> list[Slice]:
        """Slices, those that lie in a store apart from those that the broker reads."""
        found: list[Slice] = []
        for row in slices:
            part = self._part(client, row)
            settings = None if part is None or not part.rows else self._settings(part)
            if part is None or settings is None:
                found.append(row)
                continue
            found += self._cut(row, part, settings)
        return [row for row in found if row.end > row.start]

    def _part(self, client: Client, row: Slice) -> ColdPart | None:
        if self._how.mode == "broker" or row.end - row.start < OFFSETS_MIN:
            return None
        refused = self._refused_at
        if refused is not None and time.monotonic() - refused < AGAIN_S:
            return None
        part = client.cold(row.topic, row.partition, row.start, row.end)
        if part is None:  # no store: other partitions are not asked
            self._refused_at = time.monotonic()
        return part

    def _cut(self, row: Slice, part: ColdPart, settings: StoreSettings) -> list[Slice]:
        end = max(row.start, min(part.end, row.end))
        cold, hot = row.cut(row.start, end), row.cut(end, row.end)
        held = InStore(part.rows, settings, part.filter, part.aborted)
        if part.filter is None:
            return [replace(cold, cold=held), hot]
        # Records of a view: those without a topic of their own have the stream's.
        named, until = part.named
        middle = cold.start
        if named is not None:
            middle = cold.end if until is None else min(max(until, cold.start), cold.end)
        fixed, carrying = cold.cut(cold.start, middle), cold.cut(middle, cold.end)
        found = [replace(carrying, cold=held).cut(carrying.start, carrying.end), hot]
        if named is None or not TopicFilter(part.filter.encode()).matches(named.encode()):
            return found
        if not self._with_headers:
            fixed = replace(fixed, cold=replace(held, filter=None)).cut(fixed.start, fixed.end)
        return [fixed, *found]

    # -- the store

    def _settings(self, part: ColdPart) -> StoreSettings | None:
        """How the store is reached; None: the broker reads it."""
        url = part.store.url
        if url not in self._usable:
            is_folder = url.startswith(("file:", "memory:"))
            if self._how.mode == "auto" and is_folder:
                self._refused_at = time.monotonic()
                return None
            settings = store_settings(part.store, dict(self._how.options))
            if self._how.mode == "auto" and not _can_read(settings, part.rows[0]):
                self._refused_at = time.monotonic()
                return None
            self._usable[url] = settings
        return self._usable[url]


def store_settings(words: StoreWords, options: dict[str, str]) -> StoreSettings:
    """The store that a broker names, with the keys of the options or of the environment."""
    told = s3_access(options, {})
    around = s3_access({}, os.environ)
    if any(key in told for key in KEYS):
        around = {name: text for name, text in around.items() if name not in KEYS}
    # The broker knows where its store is; the environment may mean another one.
    given = "s3.endpoint" in options or "s3.credentials-file" in options
    if not given:
        told = {name: text for name, text in told.items() if name in KEYS or name in options}
    found = {_WORDS[name]: text for name, text in around.items()} | dict(words.options)
    return StoreSettings(
        url=words.url, options=found | {_WORDS[name]: text for name, text in told.items()}
    )


def _can_read(settings: StoreSettings, row: Row) -> bool:
    """Whether the driver reads the end of an object: executors mostly have the same rights."""
    if not row.object:
        return True
    try:
        at = row.position + row.piece_bytes - FOOTER_BYTES
        open_store(settings).get_range(row.object, at, FOOTER_BYTES)
    except OnelogError as error:
        _log.warning(
            "the broker reads what lies in %s, since this driver cannot: %s; options s3.* name"
            " keys, coldReads=broker ends this try",
            *(settings.url, error),
        )
        return False
    return True
