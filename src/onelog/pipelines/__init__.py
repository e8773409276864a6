"""Pipelines: files that say which topics become which tables and topics, run on Spark.

Rules: the file alone defines a pipeline. This floor turns it into options for the connector
(`onelog.spark`), and adds what a product needs: a runner that goes on where it was, one run at a
time, progress that others can see. Nothing of Spark is imported before a run.
"""

from __future__ import annotations

from onelog.pipelines.jobs import JOBS, job_text
from onelog.pipelines.load import load_pipeline
from onelog.pipelines.progress import Progress
from onelog.pipelines.spec import Pipeline
from onelog.pipelines.state import State, Status, known_pipelines
from onelog.pipelines.workspace import Workspace

__all__ = [
    "load_pipeline",
    "Pipeline",
    "Workspace",
    "Progress",
    "State",
    "Status",
    "known_pipelines",
    "JOBS",
    "job_text",
]
