"""Rules of MQTT that an operator writes as lists: topic rewrite and auto-subscription."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class RewriteRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One rule: topics that match become another topic."""

    filter: str = "#"
    pattern: str = ""
    """A regular expression for the whole topic; empty: the filter is enough."""
    to: str
    applies: Literal["all", "publish", "subscribe"] = "all"


class AutoSubscription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One subscription that clients get without asking."""

    filter: str
    """A filter with `%c` (client id) and `%u` (user)."""
    qos: Annotated[int, Meta(ge=0, le=2)] = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: Annotated[int, Meta(ge=0, le=2)] = 0
