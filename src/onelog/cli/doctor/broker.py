"""The running broker, if there is one."""

from __future__ import annotations

from pathlib import Path

from onelog.base.errors import OnelogError
from onelog.cli import client
from onelog.cli.doctor.findings import Finding
from onelog.cli.places import local_target
from onelog.cli.printable import visible
from onelog.config.listeners import AdminListener

STATUS = "`onelog status` shows more, docs/guide/operations.md what to do"


def look(admin: AdminListener, data_dir: Path, holder: int | None) -> list[Finding]:
    """What a broker on this data directory says about itself."""
    if holder is None:
        return [Finding("ok", "broker", f"no broker runs on {data_dir}")]
    if not admin.enabled:
        told = f"process {holder} runs on {data_dir}; its admin listener is off"
        return [Finding("ok", "broker", told)]
    try:
        status = client.fetch_status(local_target(data_dir, admin))
    except OnelogError as error:
        told = f"process {holder} holds {data_dir}, but does not answer: {error}"
        do = "look at its log; if it hangs, end it with SIGTERM: the log recovers"
        return [Finding("error", "broker", told, do)]
    return judge(status, holder)


def judge(status: client.Status, holder: int) -> list[Finding]:
    """Whether it is ready, what lasts, and which kernel it runs on."""
    health, info = status.health, status.info
    if info.pid != holder:
        told = f"the admin port answers for process {info.pid}, the data is held by {holder}"
        return [Finding("error", "broker", told, "name the other broker's configuration: --config")]
    found = [
        Finding("error", "broker", f"not ready: {name}: {outcome}", STATUS)
        for name, outcome in health.checks.items()
        if outcome != "ok"
    ]
    found += [
        Finding("warning", "broker", visible(f"{row.kind} at {row.place}: {row.error}"), STATUS)
        for row in health.troubles
        if row.standing and health.checks.get("troubles", "ok") == "ok"
    ]
    if info.kernel_warning:
        told, _, do = info.kernel_warning.partition("; ")
        found.append(Finding("warning", "broker", told, do))
    return found or [Finding("ok", "broker", f"process {holder} is ready")]
