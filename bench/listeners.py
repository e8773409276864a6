"""The settings that leave a broker of a benchmark one open listener.

Rules: each listener that can be closed is named, as a commit to compare with may open others by
default than this tree does. What has no switch of its own is left alone.
"""

from __future__ import annotations

from onelog.config.listeners import Listeners

SWITCHED = [
    name for name in Listeners.__struct_fields__ if hasattr(getattr(Listeners(), name), "enabled")
]


def closed_but(*kept: str) -> list[str]:
    """Settings that close every listener but these and the admin listener."""
    closed = [name for name in SWITCHED if name not in (*kept, "admin")]
    return [f"listeners.{name}.enabled=false" for name in closed]
