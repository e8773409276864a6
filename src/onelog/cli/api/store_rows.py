"""Rows of the table for what lies outside of the broker: its object store, tiers, and backups."""

from __future__ import annotations

from typing import Final

from onelog.cli.api.rows import ApiCommand, Option

STORE_ROWS: Final = (
    ApiCommand(
        words="stream tier",
        asks="GET /streams/{stream}/tier",
        about="Show how far the history of a stream is in the object store, as in: onelog stream"
        " tier plant.",
        columns="partition:name start_offset:count local_start_offset:count cold_end_offset:count"
        " pieces:count cold_bytes lag_bytes lag_age_ms:duration state",
        searches=False,
        example="main",
    ),
    ApiCommand(
        words="stream offload",
        asks="POST /streams/{stream}/tier/offload",
        patient=True,
        about="Seal the segments of a stream and move its history to the object store now.",
        done="{stream}: {said}",
        example="main",
    ),
    ApiCommand(
        words="stream bring-back",
        asks="POST /streams/{stream}/tier/bring-back",
        about="Turn a tier off, and fetch its history from the object store to the disk.",
        done="{stream}: {left} pieces come back; `onelog stream tier {stream}` shows how far it is",
        example="main",
    ),
    ApiCommand(
        words="stream delete-cold",
        asks="POST /streams/{stream}/tier/delete-cold",
        about="Turn a tier off, and delete its history in the object store; what is on the disk"
        " stays.",
        done="{stream} begins with what is on the disk; its objects go after store.grace_ms",
        example="main",
    ),
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
        words="backup list",
        asks="POST /stored-backups/{url}/list",
        about="List the backups of a store.",
        by_hand=True,
    ),
    ApiCommand(
        words="backup verify",
        asks="POST /stored-backups/{url}/verify",
        about="Check backups of a store.",
        by_hand=True,
    ),
    ApiCommand(
        words="backup prune",
        asks="POST /stored-backups/{url}/prune",
        about="Delete old backups of a store.",
        by_hand=True,
    ),
    ApiCommand(
        words="store status",
        asks="GET /store",
        about="Show what the object store was asked, what that cost, and what it said last.",
    ),
    ApiCommand(
        words="store streams",
        asks="GET /store/streams",
        about="List the streams whose history is in the object store, and how far it is there.",
        options=(
            Option(field="internal", kind="flag", about="Also the streams of the broker itself."),
        ),
        columns="stream engine tier local_bytes cold_bytes lag_bytes lag_age_ms:duration hits:count"
        " misses:count last_success_ms state problem",
        empty="no stream has history in the object store: `onelog stream alter NAME --tier log`"
        " gives it one",
    ),
    ApiCommand(
        words="store check",
        asks="POST /store/check",
        about="Try the object store: create-only writes under race, ranges, listings, its clock.",
        done="{url} keeps what a log needs: a write takes {create_ms} ms, a read {get_ms} ms",
    ),
    ApiCommand(
        words="store restore",
        asks="POST /store/restore",
        patient=True,
        about="Restore streams that lie in the object store, and that this broker does not have.",
        options=(
            Option(
                field="streams",
                kind="texts",
                flag="stream",
                about="Only this stream. Repeatable.",
            ),
            Option(field="dry_run", kind="flag", about="Only look what is there."),
            Option(
                field="take_over",
                kind="flag",
                about="Also streams that another broker wrote within the last day. Stop that broker"
                " first: its tier halts.",
            ),
        ),
        columns="stream partitions:count offsets:count cold_bytes outcome why",
        rows_in="streams",
        fails=("outcome", "damaged owned"),
        empty="the object store holds no stream",
        example="--dry-run",
    ),
    ApiCommand(
        words="store adopt",
        asks="POST /streams/{stream}/tier/adopt",
        patient=True,
        about="Take rows of a stream's table over that another writer rewrote, if each is proved,"
        " as in: onelog store adopt plant.",
        done="{stream}: {said}",
        example="main",
    ),
    ApiCommand(
        words="store sweep",
        asks="POST /store/sweep",
        patient=True,
        about="Delete objects older than a day that nothing names: what failed uploads left.",
        options=(Option(field="dry_run", kind="flag", about="Only look what would be deleted."),),
        done="{deleted} of {seen} objects are named by nothing: {deleted_bytes} bytes",
    ),
)
