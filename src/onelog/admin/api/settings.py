"""Operations on settings: the configuration, and the ones that change while the broker runs.

Rules: a request changes one setting. It counts at once, and until the process ends: the file stays
as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
from msgspec import Meta

from onelog.admin.api.declaring import (
    ADMIN,
    VIEWER,
    AnyOperation,
    ApiCall,
    ApiInput,
    ApiOperation,
    NoQuery,
)
from onelog.admin.api.desk import AdminDesk, Opened
from onelog.admin.api.paging import Page, SearchQuery, choose, contains, full_page
from onelog.base.errors import InvalidRequest
from onelog.observe import change_log_level, get_logger, log_level

TAG = "settings"
_DAY_MS = 24 * 3600 * 1000

_log = get_logger("admin")


class SettingRow(msgspec.Struct, frozen=True, kw_only=True):
    """One key of the configuration."""

    key: str
    value: Any
    """What is in force."""
    source: str
    """`default`, the file, the variable or flag that it came from, or `api`."""
    hot: bool
    """Whether it changes while the broker runs."""


class HotSettings(ApiInput, frozen=True, kw_only=True):
    """What may change while the broker runs, one of them; it lasts until the process ends.

    The bounds are those of the configuration.
    """

    log_level: Literal["debug", "info", "warning", "error"] | None = None
    ban_failures: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    """`security.bans.failures`"""
    ban_ms: Annotated[int, Meta(ge=1000, le=365 * _DAY_MS)] | None = None
    """`security.bans.ban_ms`"""
    ban_delay_ms: Annotated[int, Meta(ge=0, le=60_000)] | None = None
    """`security.bans.delay_ms`"""


class HotSetting(NamedTuple):
    """A key that changes while the broker runs."""

    field: str
    """Of the request."""
    read: Callable[[Opened], Any]
    change: Callable[[Opened, Any], None]


def _of_bans(field: str, name: str, unit: int = 1) -> HotSetting:
    """A setting of bans; `unit` is how many of the key's units are one of the broker's."""

    def read(opened: Opened) -> int:
        value: float = getattr(opened.authenticator.bans.settings, name)
        return round(value * unit)

    def change(opened: Opened, value: int) -> None:
        bans = opened.authenticator.bans
        now = value if unit == 1 else value / unit
        bans.settings = msgspec.structs.replace(bans.settings, **{name: now})

    return HotSetting(field, read, change)


HOT: Final = {
    "log.level": HotSetting(
        "log_level", lambda _opened: log_level(), lambda _opened, level: change_log_level(level)
    ),
    "security.bans.failures": _of_bans("ban_failures", "failures"),
    "security.bans.ban_ms": _of_bans("ban_ms", "ban_s", 1000),
    "security.bans.delay_ms": _of_bans("ban_delay_ms", "delay_s", 1000),
}
"""By the key of the configuration."""


class SettingOperations:
    """Handlers."""

    def __init__(self, desk: AdminDesk) -> None:
        self._desk = desk

    def table(self) -> list[AnyOperation]:
        """What is asked where."""
        rows: list[AnyOperation] = [
            ApiOperation(
                method="GET", path="/config", role=VIEWER, tag=TAG,
                summary="Every key of the configuration, its value and where it came from.",
                query=SearchQuery, answer=Page[SettingRow], handler=self.config,
            ),
            ApiOperation(
                method="PATCH", path="/config", role=ADMIN, tag=TAG,
                summary="Change what is hot, until the process ends.", body=HotSettings,
                answer=SettingRow, handler=self.change,
            ),
        ]  # fmt: skip
        return rows

    async def config(self, call: ApiCall[SearchQuery, None]) -> Page[SettingRow]:
        """A page of keys."""
        self._desk.sight(call.caller).need_all("the configuration")
        query, loaded = call.query, self._desk.opened.loaded
        tree = msgspec.to_builtins(loaded.config)
        found = await choose(
            self._desk.share,
            loaded.sources.items(),
            query,
            lambda row: row[0],
            kind=str,
            wanted=lambda row: contains(query.search, row[0]),
        )
        rows = [self._row(tree, key, source) for key, source in found]
        return full_page(query, rows, lambda row: row.key)

    async def change(self, call: ApiCall[NoQuery, HotSettings]) -> SettingRow:
        """Change one setting."""
        asked = {
            key: (hot, value)
            for key, hot in HOT.items()
            if (value := getattr(call.body, hot.field)) is not None
        }
        if len(asked) != 1:
            fields = ", ".join(hot.field for hot in HOT.values())
            raise InvalidRequest(f"a request changes exactly one of {fields}")
        ((key, (hot, value)),) = asked.items()
        opened = self._desk.opened
        before = hot.read(opened)
        hot.change(opened, value)
        _log.warning(
            "a setting was changed", key=key, before=before, now=value, by=call.caller.name
        )
        return SettingRow(key=key, value=value, source="api", hot=True)

    def _row(self, tree: Any, key: str, source: str) -> SettingRow:
        value = tree
        for part in key.split("."):
            value = value[part]
        hot = HOT.get(key)
        if hot is not None and (now := hot.read(self._desk.opened)) != value:
            value, source = now, "api"
        return SettingRow(key=key, value=value, source=source, hot=hot is not None)
