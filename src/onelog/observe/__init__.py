"""How the server reports on itself: logs, metrics and health."""

from onelog.observe.health import Health, HealthReport
from onelog.observe.logging import (
    change_log_level,
    configure_logging,
    get_logger,
    log_level,
)
from onelog.observe.loop_lag import LoopLag
from onelog.observe.metrics import Registry, Sample
from onelog.observe.troubles import Trouble, Troubles

__all__ = [
    "Health",
    "HealthReport",
    "LoopLag",
    "Registry",
    "Sample",
    "Trouble",
    "Troubles",
    "change_log_level",
    "configure_logging",
    "get_logger",
    "log_level",
]
