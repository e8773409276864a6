"""The built-in jobs: pipelines that are written once by us, and then are the user's own files."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

JOBS: Final = {
    "transform": "topics in, SQL, a topic out",
    "archive": "topics into a table, every record, history too",
    "table": "the latest record of each key, as a table",
    "compact": "small files of a table become large ones, old snapshots go",
    "dedupe": "records that come twice go on once",
    "sessionise": "visits: records of a key that follow each other closely, as one row",
    "replay": "a table back into a topic",
}
"""Each job, and what it does. The file has the job's name."""


def job_text(job: str, name: str) -> str:
    """The file of a job, under the name that the pipeline is to have."""
    return files(__name__).joinpath(f"{job}.toml").read_text("utf-8").replace("@name@", name)
