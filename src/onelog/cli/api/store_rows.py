"""Rows of the table for what lies outside of the broker: its object store, and backups."""

from __future__ import annotations

from typing import Final

from onelog.cli.api.rows import ApiCommand, Option

STORE_ROWS: Final = (
    ApiCommand(words="backup create", asks="POST /backups", about="Begin a backup.", by_hand=True),
    ApiCommand(words="backup status", asks="GET /backups", about="List backups.", by_hand=True),
    ApiCommand(
        words="backup show",
        asks="GET /backups/{backup}",
        about="Show how far a backup of the running server is.",
    ),
    ApiCommand(
        words="backup cancel",
        asks="DELETE /backups/{backup}",
        about="End a backup that is under way.",
        by_hand=True,
    ),
    ApiCommand(
        words="store status",
        asks="GET /store",
        about="Show what the object store was asked, what that cost, and what it said last.",
    ),
    ApiCommand(
        words="store check",
        asks="POST /store/check",
        about="Try the object store: create-only writes under race, ranges, listings, its clock.",
        done="{url} keeps what a log needs: a write takes {create_ms} ms, a read {get_ms} ms",
    ),
    ApiCommand(
        words="store sweep",
        asks="POST /store/sweep",
        about="Delete objects older than a day that nothing names: what failed uploads left.",
        options=(Option(field="dry_run", kind="flag", about="Only look what would be deleted."),),
        done="{deleted} of {seen} objects are named by nothing: {deleted_bytes} bytes",
    ),
)
