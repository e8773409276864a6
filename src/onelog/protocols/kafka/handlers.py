"""The table of control APIs: which function serves which.

Rules: every API of `apis.py` but Produce and Fetch, which have their own path, has a row in
`HANDLERS`. An error that a handler raises becomes an answer in `refusals.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from onelog.protocols.kafka.admin.acls import create_acls, delete_acls, describe_acls
from onelog.protocols.kafka.admin.altering import alter_configs, incremental_alter_configs
from onelog.protocols.kafka.admin.client_quotas import (
    alter_client_quotas,
    describe_client_quotas,
)
from onelog.protocols.kafka.admin.creating import create_partitions, create_topics
from onelog.protocols.kafka.admin.deleting import delete_records, delete_topics
from onelog.protocols.kafka.admin.describing import describe_configs
from onelog.protocols.kafka.admin.log_dirs import describe_log_dirs
from onelog.protocols.kafka.admin.placing import (
    alter_partition_reassignments,
    alter_replica_log_dirs,
    elect_leaders,
    list_partition_reassignments,
)
from onelog.protocols.kafka.admin.quorum import describe_quorum
from onelog.protocols.kafka.admin.scram_users import (
    alter_user_scram_credentials,
    describe_user_scram_credentials,
)
from onelog.protocols.kafka.admin.topic_partitions import describe_topic_partitions
from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.kafka.codec import Body
from onelog.protocols.kafka.cold import cold
from onelog.protocols.kafka.groups.committing import (
    offset_commit,
    offset_delete,
    offset_fetch,
)
from onelog.protocols.kafka.groups.finding import find_coordinator
from onelog.protocols.kafka.groups.inspecting import (
    delete_groups,
    describe_groups,
    list_groups,
)
from onelog.protocols.kafka.groups.membership import (
    heartbeat,
    join_group,
    leave_group,
    sync_group,
)
from onelog.protocols.kafka.listing import list_offsets, offset_for_leader_epoch
from onelog.protocols.kafka.metadata import describe_cluster, metadata
from onelog.protocols.kafka.request import Handler, Request
from onelog.protocols.kafka.sasl import sasl_authenticate, sasl_handshake
from onelog.protocols.kafka.transactions.adding import add_offsets_to_txn, add_partitions_to_txn
from onelog.protocols.kafka.transactions.beginning import init_producer_id
from onelog.protocols.kafka.transactions.describing import (
    describe_producers,
    describe_transactions,
    list_transactions,
)
from onelog.protocols.kafka.transactions.ending import end_txn
from onelog.protocols.kafka.transactions.linking import link
from onelog.protocols.kafka.transactions.offsets import txn_offset_commit
from onelog.protocols.kafka.views.naming import names

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub


async def api_versions(hub: Hub, request: Request) -> Body:
    """The APIs and versions that are served."""
    del request
    return hub.api_versions()


HANDLERS: Final[dict[ApiKey, Handler]] = {
    ApiKey.API_VERSIONS: api_versions,
    ApiKey.SASL_HANDSHAKE: sasl_handshake,
    ApiKey.SASL_AUTHENTICATE: sasl_authenticate,
    ApiKey.METADATA: metadata,
    ApiKey.DESCRIBE_CLUSTER: describe_cluster,
    ApiKey.LIST_OFFSETS: list_offsets,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
    ApiKey.FIND_COORDINATOR: find_coordinator,
    ApiKey.JOIN_GROUP: join_group,
    ApiKey.SYNC_GROUP: sync_group,
    ApiKey.HEARTBEAT: heartbeat,
    ApiKey.LEAVE_GROUP: leave_group,
    ApiKey.OFFSET_COMMIT: offset_commit,
    ApiKey.OFFSET_FETCH: offset_fetch,
    ApiKey.OFFSET_DELETE: offset_delete,
    ApiKey.DESCRIBE_GROUPS: describe_groups,
    ApiKey.LIST_GROUPS: list_groups,
    ApiKey.DELETE_GROUPS: delete_groups,
    ApiKey.INIT_PRODUCER_ID: init_producer_id,
    ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
    ApiKey.ADD_OFFSETS_TO_TXN: add_offsets_to_txn,
    ApiKey.TXN_OFFSET_COMMIT: txn_offset_commit,
    ApiKey.END_TXN: end_txn,
    ApiKey.LINK: link,
    ApiKey.NAMES: names,
    ApiKey.COLD: cold,
    ApiKey.LIST_TRANSACTIONS: list_transactions,
    ApiKey.DESCRIBE_TRANSACTIONS: describe_transactions,
    ApiKey.DESCRIBE_PRODUCERS: describe_producers,
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.CREATE_PARTITIONS: create_partitions,
    ApiKey.DELETE_RECORDS: delete_records,
    ApiKey.DESCRIBE_CONFIGS: describe_configs,
    ApiKey.ALTER_CONFIGS: alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
    ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs,
    ApiKey.DESCRIBE_ACLS: describe_acls,
    ApiKey.CREATE_ACLS: create_acls,
    ApiKey.DELETE_ACLS: delete_acls,
    ApiKey.ELECT_LEADERS: elect_leaders,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
    ApiKey.ALTER_REPLICA_LOG_DIRS: alter_replica_log_dirs,
    ApiKey.DESCRIBE_CLIENT_QUOTAS: describe_client_quotas,
    ApiKey.ALTER_CLIENT_QUOTAS: alter_client_quotas,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: describe_user_scram_credentials,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: alter_user_scram_credentials,
    ApiKey.DESCRIBE_QUORUM: describe_quorum,
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: describe_topic_partitions,
}
