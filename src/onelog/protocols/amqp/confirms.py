"""Publisher confirms: the outcomes of publishes (the kernel's `Confirms` has the rules)."""

from __future__ import annotations

from typing import Final

UNKNOWN: Final = 0
ACK: Final = 1
NACK: Final = 2
"""The outcome of a publish."""
