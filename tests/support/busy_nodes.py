"""A node whose maintenance runs every second, and asks the others as often."""

from __future__ import annotations

import msgspec

from onelog import app
from onelog.cluster import needs_of_nodes
from tests.support.forks import onelog


def onelog_often(*arguments: str) -> None:
    """The command. It is called in a process of its own."""
    honest = app.broker_settings

    def settings(config):
        return msgspec.structs.replace(honest(config), maintenance_interval_s=1.0)

    app.broker_settings = settings
    needs_of_nodes.ASK_EVERY_S = 1.0
    onelog(*arguments)
