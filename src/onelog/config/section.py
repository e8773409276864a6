"""What every table of the configuration is."""

from __future__ import annotations

import msgspec


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the configuration file."""
