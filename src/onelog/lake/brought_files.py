"""What the lake process does for readers: batches of a table's rows become a file.

Rules: neither this module nor what it imports knows a library of tables: those take a second to
import, and the first cold read after a start does not wait for them.
"""

from __future__ import annotations

from pathlib import Path

from onelog.base.errors import ColdDamaged, NotFound
from onelog.lake.jobs import BringJob, LakeAnswer, LakeSettings
from onelog.lake.rebuilding import Rebuilding
from onelog.lake.storage_now import StorageNow
from onelog.objects.store import StoreSettings, open_store


class BroughtFiles:
    """Writes them. Any thread may call it."""

    def __init__(self, settings: LakeSettings) -> None:
        self.store = open_store(
            StoreSettings(
                url=settings.url,
                options=dict(settings.options),
                deadline_ms=settings.deadline_ms,
            )
        )
        self.access = StorageNow(settings.url, settings.options)
        self.rebuilding = Rebuilding(self.store, self.access)

    def bring(self, job: BringJob) -> LakeAnswer:
        """Batches go into a file."""
        try:
            return self._bring(job)
        except (ColdDamaged, NotFound):
            self.rebuilding.forget(job.row)
            raise

    def _bring(self, job: BringJob) -> LakeAnswer:
        run = self.rebuilding.run(job.row, job.offset, job.size_bytes)
        size = 0
        with Path(job.path).open("wb") as out:
            for part in run.parts:
                out.write(part)
                size += len(part)
        return LakeAnswer(0, "", "", (), (run.first, run.end, size))
