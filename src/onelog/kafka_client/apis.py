"""The requests of Kafka that our client sends, and in which versions."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Api(IntEnum):
    """The requests that our client sends, by their numbers."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    SASL_HANDSHAKE = 17
    CREATE_TOPICS = 19
    INIT_PRODUCER_ID = 22
    ADD_PARTITIONS_TO_TXN = 24
    END_TXN = 26
    SASL_AUTHENTICATE = 36
    NAMES = 20_001
    COLD = 20_002


VERSIONS: Final[dict[int, int]] = {
    Api.PRODUCE: 8,
    Api.FETCH: 11,
    Api.LIST_OFFSETS: 2,
    Api.METADATA: 4,
    Api.OFFSET_COMMIT: 3,
    Api.OFFSET_FETCH: 3,
    Api.SASL_HANDSHAKE: 1,
    Api.CREATE_TOPICS: 4,
    Api.INIT_PRODUCER_ID: 1,
    Api.ADD_PARTITIONS_TO_TXN: 1,
    Api.END_TXN: 1,
    Api.SASL_AUTHENTICATE: 0,
    Api.NAMES: 0,
    Api.COLD: 0,
}
"""The newest version of each request that has no tagged fields, or the least that says enough."""
