"""A node whose maintenance runs every second, and whose cursors are saved at once."""

from __future__ import annotations

import msgspec

from onelog import assembly
from onelog.cluster import needs_of_nodes
from tests.support.forks import onelog


def onelog_often(*arguments: str) -> None:
    """The command. It is called in a process of its own."""
    honest = assembly.broker_settings

    def settings(config):
        return msgspec.structs.replace(honest(config), maintenance_interval_s=1.0)

    assembly.broker_settings = settings
    needs_of_nodes.ASK_EVERY_S = 1.0
    onelog(*arguments)
