"""Pipelines that are Spark's own: a spec of Spark Declarative Pipelines and its definitions.

Rules: Spark defines the meaning of the spec. This package checks it early, runs it with the
settings that OneLog's sources and sinks need, and shows it like every other pipeline. Nothing of
Spark is imported before a run.
"""

from __future__ import annotations

from onelog.pipelines.declarative.project import write_project
from onelog.pipelines.declarative.spec import Declarative, is_declarative, load_declarative

__all__ = ["Declarative", "is_declarative", "load_declarative", "write_project"]
