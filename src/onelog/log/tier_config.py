"""The tier of a stream: in which form its history goes to the object store, and what stays here.

Rules: a tier is a part of a stream's configuration and may change while the stream runs. The
word "total" means the stream's retention, which counts records in every place. A stream without a
format copies nothing; what it copied before stays readable until retention takes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final

import msgspec

from onelog.base.errors import InvalidRequest
from onelog.lake.column_words import column_types
from onelog.storage.tier import TierFormat, TierSettings

AS_TOTAL: Final = -2
"""The bound of the total retention holds (Kafka has the same number for it)."""
NO_BOUND: Final = -1
_DAY_MS: Final = 24 * 3600 * 1000
_LONG_MAX: Final = 2**63 - 1
_TEXT_CHARS_MAX: Final = 32_767
_NAME_CHARS_MAX: Final = 512

TIERED_ENGINES: Final = ("segment", "object")
"""Engines whose streams may have a tier."""


class ColdFormat(StrEnum):
    """How history lies in the store."""

    NONE = ""
    LOG = "log"
    ICEBERG = "iceberg"
    DELTA = "delta"

    @property
    def is_table(self) -> bool:
        """Whether SQL reads it, too."""
        return self in (ColdFormat.ICEBERG, ColdFormat.DELTA)


_STORED: Final[dict[ColdFormat, TierFormat]] = {
    ColdFormat.LOG: "log",
    ColdFormat.ICEBERG: "iceberg",
    ColdFormat.DELTA: "delta",
}


class TierConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What of a stream goes to the object store, and when it leaves the disk here."""

    format: ColdFormat = ColdFormat.NONE
    copy: bool = True
    """Whether sealed segments are copied; if not, what was copied stays readable."""
    delete_when_off: bool = False
    """Whether the copies go when the format is taken away; the log then begins at what is here."""
    local_age_ms: int = AS_TOTAL
    """Copied records older than this leave the disk here; -1: never by age, -2: as the total."""
    local_bytes: int = AS_TOTAL
    """Bytes of copied records that stay here, for the whole stream; -1: no bound, -2: as the
    total."""
    commit_ms: int = 5 * 60_000
    """A table gets new rows so often at most."""
    columns: str = ""
    """Typed columns of a table beside `value`: `json: temp double, at timestamp`."""
    table: str = ""
    """The name of the table; empty: the stream's name."""
    catalog: str = ""
    """The catalog that the table is registered in; empty: that of the configuration."""
    snapshot_age_ms: int = _DAY_MS
    """Snapshots of a table older than this are forgotten; -1: never."""
    table_age_ms: int = AS_TOTAL
    """How long a table keeps rows; -2: as long as the log, -1: for ever."""

    @property
    def is_on(self) -> bool:
        """Whether the stream has a tier."""
        return self.format is not ColdFormat.NONE

    @property
    def copies(self) -> bool:
        """Whether sealed segments go to the store."""
        return self.is_on and self.copy


OFF: Final = TierConfig()
"""No tier."""


class LocalWindow(msgspec.Struct, frozen=True, kw_only=True):
    """What one partition keeps here of records that are in the store, too; -1: no bound."""

    age_ms: int
    bytes: int


def field_bounds(tier: TierConfig) -> Iterator[tuple[str, int, int, int]]:
    """(key, value, lowest, highest) of each number."""
    yield "tier.local_age_ms", tier.local_age_ms, AS_TOTAL, _LONG_MAX
    yield "tier.local_bytes", tier.local_bytes, AS_TOTAL, _LONG_MAX
    yield "tier.commit_ms", tier.commit_ms, 1000, _LONG_MAX
    yield "tier.snapshot_age_ms", tier.snapshot_age_ms, NO_BOUND, _LONG_MAX
    yield "tier.table_age_ms", tier.table_age_ms, AS_TOTAL, _LONG_MAX
    yield "characters of tier.columns", len(tier.columns), 0, _TEXT_CHARS_MAX
    yield "characters of tier.table", len(tier.table), 0, _NAME_CHARS_MAX
    yield "characters of tier.catalog", len(tier.catalog), 0, _NAME_CHARS_MAX


def unfit(tier: TierConfig, *, engine: str, compacts: bool) -> str | None:
    """Why a stream of this kind cannot have this tier; None: it can."""
    if not tier.is_on:
        return None
    if engine not in TIERED_ENGINES:
        return (
            f"tier.format = {tier.format} needs the engine {' or '.join(TIERED_ENGINES)},"
            f" not {engine}"
        )
    if compacts:
        return (
            f"tier.format = {tier.format} cannot go with cleanup = compact: history in the store is"
            " not compacted; use cleanup = delete, or the engine object without a tier"
        )
    if engine == "object" and not tier.format.is_table:
        return (
            f"the engine object keeps everything in the store already: leave tier.format ="
            f" {tier.format} away, or choose iceberg or delta, which make its history a table"
        )
    if tier.columns and not tier.format.is_table:
        return f"tier.columns needs tier.format iceberg or delta, not {tier.format}"
    return None


def beyond_total(tier: TierConfig, *, age_ms: int, size_bytes: int) -> str | None:
    """Which local bound is larger than the total one, as Kafka refuses it; None: neither."""
    if not tier.is_on:
        return None
    rows = (
        ("tier.local_age_ms", tier.local_age_ms, "retention.age_ms", age_ms),
        ("tier.local_bytes", tier.local_bytes, "retention.bytes", size_bytes),
    )
    for key, local, other, total in rows:
        if total >= 0 and (local == NO_BOUND or local > total):
            shown = "unlimited" if local == NO_BOUND else local
            return f"{key} ({shown}) is more than {other} ({total}): -2 is the same as {other}"
    return None


def bad_columns(tier: TierConfig) -> str | None:
    """Why the words for typed columns mean none; None: they do."""
    try:
        column_types(tier.columns)
    except InvalidRequest as error:
        return str(error)
    return None


def changed_columns(old: TierConfig, new: TierConfig) -> str | None:
    """Which typed column would change its type in a table that is written to; None: none would."""
    is_same = (old.format, old.table, old.catalog) == (new.format, new.table, new.catalog)
    if not is_same or not new.format.is_table or bad_columns(old) is not None:
        return None
    before = column_types(old.columns)
    for name, kind in column_types(new.columns).items():
        was = before.get(name, kind)
        if kind != was and (was, kind) != ("int", "bigint"):
            return (
                f"tier.columns: {name} is {was} in the table and cannot become {kind}: give the"
                " column another name, or set tier.table to another table"
            )
    return None


def window_of(tier: TierConfig, *, age_ms: int, size_bytes: int, partitions: int) -> LocalWindow:
    """What a partition keeps here; the total bounds hold where the tier has none of its own."""
    local_bytes = size_bytes if tier.local_bytes == AS_TOTAL else tier.local_bytes
    return LocalWindow(
        age_ms=age_ms if tier.local_age_ms == AS_TOTAL else tier.local_age_ms,
        bytes=local_bytes if local_bytes < 0 else local_bytes // partitions,
    )


def tier_settings(tier: TierConfig, stream: str, topic: str | None) -> TierSettings | None:
    """The part of a tier that the storage engine needs; None: there is no tier.

    `topic` is the topic of every record of the stream; None: each has its own.
    """
    if not tier.is_on:
        return None
    words = {
        "table": tier.table or stream,
        "catalog": tier.catalog,
        "columns": tier.columns,
        "topic": topic or "",
        "commit_ms": str(tier.commit_ms),
        "snapshot_age_ms": str(tier.snapshot_age_ms),
        "table_age_ms": str(tier.table_age_ms),
    }
    return TierSettings(
        format=_STORED[tier.format], copy=tier.copy, table=words if tier.format.is_table else {}
    )


class StoreSupport(msgspec.Struct, frozen=True, kw_only=True):
    """What the broker's object store can do for streams; this one has no store."""

    url: str = ""
    formats: tuple[ColdFormat, ...] = ()
    """The formats that this broker writes."""
    catalog: str = ""
    """Where tables of Iceberg are registered; empty: in a file on this machine's disk."""

    def lacks(self, tier: TierConfig, engine: str) -> str | None:
        """Why streams of this tier and engine are not possible here; None: they are."""
        if (tier.is_on or engine == "object") and not self.url:
            what = f"tier.format = {tier.format}" if tier.is_on else "engine = object"
            return (
                f"{what} needs an object store: set store.url (s3://BUCKET/PREFIX) in the broker's"
                " configuration and start it again"
            )
        if tier.is_on and tier.format not in self.formats:
            return (
                f"tier.format = {tier.format} is not possible here: this broker writes"
                f" {', '.join(self.formats) or 'none'}; iceberg and delta need the extra"
                " onelog[lake]"
            )
        is_here = tier.format is ColdFormat.ICEBERG and not (tier.catalog or self.catalog)
        if engine == "object" and is_here:
            return (
                "tier.format = iceberg with the engine object needs a catalog that does not go with"
                " this machine's disk: set lake.catalog (a REST catalog, or a database), or choose"
                " delta, which needs none"
            )
        return None

    def format_for(self, word: str) -> ColdFormat:
        """The format that a word means: its name, `none`, or the store's URL for `log`.

        Raises ValueError for anything else.
        """
        if word in ("none", ""):
            return ColdFormat.NONE
        if "://" not in word:
            try:
                return ColdFormat(word)
            except ValueError:
                names = ", ".join(row for row in ColdFormat if row)
                raise ValueError(f"a tier is none, {names} or the store's URL, not {word!r}") from (
                    None
                )
        if not self.url:
            raise ValueError(
                f"the tier {word} needs store.url = {word!r} in the broker's configuration: this"
                " broker has no object store"
            )
        if _plain(word) != _plain(self.url):
            raise ValueError(
                f"the tier {word} is not the store of this broker, which is {self.url} (store.url):"
                " a broker has one store"
            )
        return ColdFormat.LOG


def _plain(url: str) -> str:
    """A URL without what makes no difference."""
    scheme, _, rest = url.partition("://")
    return f"{'s3' if scheme == 's3a' else scheme}://{rest.strip('/')}"
