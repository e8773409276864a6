"""Operations on settings: the configuration, and the ones that change while the broker runs."""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from onelog.admin.api.declaring import (
    ADMIN,
    VIEWER,
    AnyOperation,
    ApiCall,
    ApiInput,
    ApiOperation,
    NoQuery,
)
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.paging import Page, SearchQuery, choose, contains, full_page
from onelog.observe import change_log_level, get_logger, log_level

TAG = "settings"
LOG_LEVEL: Final = "log.level"

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
    """What may change while the broker runs; it lasts until the process ends."""

    log_level: Literal["debug", "info", "warning", "error"]


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
        rows = [_row(tree, key, source) for key, source in found]
        return full_page(query, rows, lambda row: row.key)

    async def change(self, call: ApiCall[NoQuery, HotSettings]) -> SettingRow:
        """Change the level of the log."""
        before, level = log_level(), call.body.log_level
        change_log_level(level)
        _log.warning("the log level was changed", before=before, now=level, by=call.caller.name)
        return SettingRow(key=LOG_LEVEL, value=level, source="api", hot=True)


def _row(tree: Any, key: str, source: str) -> SettingRow:
    value = tree
    for part in key.split("."):
        value = value[part]
    if key == LOG_LEVEL and value != log_level():
        return SettingRow(key=key, value=log_level(), source="api", hot=True)
    return SettingRow(key=key, value=value, source=source, hot=key == LOG_LEVEL)
