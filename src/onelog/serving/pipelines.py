"""Pipelines of a data directory as the admin API shows them."""

from __future__ import annotations

from pathlib import Path

from onelog.admin.contract import PipelineInfo, TargetProgress
from onelog.pipelines.state import Status, known_pipelines


def pipeline_rows(data_dir: Path) -> list[PipelineInfo]:
    """Every pipeline that has run here; blocks."""
    return [_row(status) for status in known_pipelines(data_dir)]


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
