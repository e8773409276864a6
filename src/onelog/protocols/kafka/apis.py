"""Every API that is served: its key, the versions that are advertised, and when it is allowed.

Rules: an API that is not in these tables does not exist for clients. The ranges follow the clients
in use (docs/reference/kafka.md); no version is advertised that is only partly served.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple


class ApiKey(IntEnum):
    """The numbers of the protocol."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    DESCRIBE_TOPIC_PARTITIONS = 75
    LINK = 20_000
    NAMES = 20_001
    COLD = 20_002


class Api(NamedTuple):
    """One API."""

    key: ApiKey
    first: int
    """The least version that is advertised."""
    last: int
    """The greatest version that is advertised and served."""
    flexible: int
    """The version from which the request header has tags."""
    served: int = 0
    """The least version that is served; below it the connection ends, as in Kafka."""
    before_login: bool = False


_NEVER: Final = 1000
_K = ApiKey

_ROWS: Final = (
    # librdkafka before 2.11.1 turns compression off where Produce v0 is missing.
    Api(_K.PRODUCE, 0, 11, 9, served=3),
    Api(_K.FETCH, 4, 17, 12),
    Api(_K.LIST_OFFSETS, 1, 10, 6),
    Api(_K.METADATA, 0, 13, 9),
    Api(_K.OFFSET_COMMIT, 2, 9, 8),
    Api(_K.OFFSET_FETCH, 1, 9, 6),
    Api(_K.FIND_COORDINATOR, 0, 6, 3),
    Api(_K.JOIN_GROUP, 0, 9, 6),
    Api(_K.HEARTBEAT, 0, 4, 4),
    Api(_K.LEAVE_GROUP, 0, 5, 4),
    Api(_K.SYNC_GROUP, 0, 5, 4),
    Api(_K.DESCRIBE_GROUPS, 0, 5, 5),
    Api(_K.LIST_GROUPS, 0, 5, 3),
    Api(_K.SASL_HANDSHAKE, 0, 1, _NEVER, before_login=True),
    Api(_K.API_VERSIONS, 0, 4, 3, before_login=True),
    Api(_K.CREATE_TOPICS, 2, 7, 5),
    Api(_K.DELETE_TOPICS, 1, 6, 4),
    Api(_K.DELETE_RECORDS, 0, 2, 2),
    Api(_K.INIT_PRODUCER_ID, 0, 5, 2),
    Api(_K.OFFSET_FOR_LEADER_EPOCH, 2, 4, 4),
    Api(_K.ADD_PARTITIONS_TO_TXN, 0, 3, 3),
    Api(_K.ADD_OFFSETS_TO_TXN, 0, 4, 3),
    Api(_K.END_TXN, 0, 4, 3),
    Api(_K.TXN_OFFSET_COMMIT, 0, 4, 3),
    Api(_K.DESCRIBE_ACLS, 1, 3, 2),
    Api(_K.CREATE_ACLS, 1, 3, 2),
    Api(_K.DELETE_ACLS, 1, 3, 2),
    Api(_K.DESCRIBE_CONFIGS, 1, 4, 4),
    Api(_K.ALTER_CONFIGS, 0, 2, 2),
    Api(_K.ALTER_REPLICA_LOG_DIRS, 1, 2, 2),
    Api(_K.DESCRIBE_LOG_DIRS, 1, 4, 2),
    Api(_K.SASL_AUTHENTICATE, 0, 2, 2, before_login=True),
    Api(_K.CREATE_PARTITIONS, 0, 3, 2),
    Api(_K.DELETE_GROUPS, 0, 2, 2),
    Api(_K.ELECT_LEADERS, 0, 2, 2),
    Api(_K.INCREMENTAL_ALTER_CONFIGS, 0, 1, 1),
    Api(_K.ALTER_PARTITION_REASSIGNMENTS, 0, 1, 0),
    Api(_K.LIST_PARTITION_REASSIGNMENTS, 0, 0, 0),
    Api(_K.OFFSET_DELETE, 0, 0, _NEVER),
    Api(_K.DESCRIBE_CLIENT_QUOTAS, 0, 1, 1),
    Api(_K.ALTER_CLIENT_QUOTAS, 0, 1, 1),
    Api(_K.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, 0),
    Api(_K.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, 0),
    Api(_K.DESCRIBE_QUORUM, 0, 2, 0),
    Api(_K.DESCRIBE_CLUSTER, 0, 1, 0),
    Api(_K.DESCRIBE_PRODUCERS, 0, 0, 0),
    Api(_K.DESCRIBE_TRANSACTIONS, 0, 0, 0),
    Api(_K.LIST_TRANSACTIONS, 0, 1, 0),
    Api(_K.DESCRIBE_TOPIC_PARTITIONS, 0, 0, 0),
)

APIS: Final[dict[int, Api]] = {int(row.key): row for row in _ROWS}

_PRIVATE_ROWS: Final = (
    Api(_K.LINK, 0, 0, _NEVER),
    Api(_K.NAMES, 0, 0, _NEVER),
    Api(_K.COLD, 0, 0, _NEVER),
)

PRIVATE: Final[dict[int, Api]] = {int(row.key): row for row in _PRIVATE_ROWS}
"""Private APIs for OneLog's own clients. They are not advertised, so that no other client meets a
key that it does not know, and are far above Kafka's numbers. Their handlers read the bodies."""

SERVED: Final[dict[int, Api]] = APIS | PRIVATE
