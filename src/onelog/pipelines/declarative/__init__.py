"""Pipelines that are Spark's own: a spec of Spark Declarative Pipelines and its definitions.

Rules: what the spec means is Spark's to say; here it is checked early, run with the settings that
OneLog's sources and sinks want, and shown as every other pipeline is. Nothing of Spark is imported
before a run.
"""

from __future__ import annotations

from onelog.pipelines.declarative.project import write_project
from onelog.pipelines.declarative.spec import Declarative, is_declarative, load_declarative

__all__ = ["Declarative", "is_declarative", "load_declarative", "write_project"]
