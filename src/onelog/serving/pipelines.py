"""Pipelines of a data directory as the admin API shows them.

Rules: a status that cannot be read is left out: another process writes it, perhaps a newer version.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from onelog.admin.contract import PipelineInfo, TargetProgress
from onelog.base.errors import OnelogError
from onelog.pipelines.state import Status, known_pipelines


def pipeline_rows(data_dir: Path) -> list[PipelineInfo]:
    """Every pipeline that has run here; blocks."""
    found = []
    for state in known_pipelines(data_dir):
        try:
            found.append(_row(state.status()))
        except (OnelogError, OSError, msgspec.MsgspecError):
            continue
    return found


def _row(status: Status) -> PipelineInfo:
    return PipelineInfo(
        name=status.name,
        phase=status.phase,
        file=status.file,
        master=status.master,
        mode=status.mode,
        pid=status.pid,
        started=status.started,
        error=status.error,
        targets=tuple(
            TargetProgress(
                target=name,
                batch=row.batch,
                rows=row.rows,
                rows_per_s=row.rows_per_s,
                lag=row.lag,
                batch_ms=row.batch_ms,
                at=row.at,
                state=row.state,
            )
            for name, row in sorted(status.targets.items())
        ),
    )
