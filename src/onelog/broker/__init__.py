"""The door: publish, cursors, streams, sessions, quotas. Protocols enter here and nowhere else."""

from onelog.broker.answers import NOWHERE, Notice, Published
from onelog.broker.append_spans import AppendSpans
from onelog.broker.audit import (
    AUDIT_FILTER,
    AUDIT_STREAM,
    AuditSink,
    AuditTrail,
    NoAudit,
    note_failed_login,
)
from onelog.broker.audit_event import AuditEvent, decode_event, login_failed, outcome_of
from onelog.broker.backups import BackupRun, Backups
from onelog.broker.broker import MAIN, MAIN_CONFIG, Broker, BrokerSettings
from onelog.broker.checks import Home
from onelog.broker.cursors import CursorDesk
from onelog.broker.elsewhere import address_at, check_here
from onelog.broker.hooks import (
    LOCAL,
    NOBODY,
    Action,
    AllowAll,
    Authorizer,
    Kind,
    Principal,
    Quotas,
    Unlimited,
)
from onelog.broker.kept import KeptRow, KeptTable
from onelog.broker.live import Live, LiveListener, LiveSource
from onelog.broker.nodes import ClusterNodes
from onelog.broker.observing import Observing
from onelog.broker.publish import Publisher
from onelog.broker.replica_reads import until_visible
from onelog.broker.seeking import Redriven, places, redrive, seek
from onelog.broker.sessions import Session, SessionRecord, Sessions
from onelog.broker.spans import Spans
from onelog.broker.views import NamedView, NamedViews
from onelog.broker.write_times import NotedPublisher
from onelog.cursors.cursor import Cursor, CursorKind, CursorState, Position, Reading, ignore_change
from onelog.cursors.delivery import Acquired, DeadLetter, QueueSettings
from onelog.cursors.offset import Committed, OffsetCursor
from onelog.cursors.offsets import OffsetSet
from onelog.cursors.queue import QueueCursor
from onelog.cursors.routed import RoutedCursor
from onelog.cursors.session import SessionCursor, SessionDelivery
from onelog.cursors.shared_reads import SharedRead
from onelog.cursors.sources import Source
from onelog.cursors.start import EARLIEST, LATEST, Start
from onelog.cursors.table import TableCursor
from onelog.cursors.tail import TailCursor
from onelog.cursors.wait import QueueWait, Wait
from onelog.log.adopting import Adopted
from onelog.log.cluster_map import NOBODY as NO_NODE
from onelog.log.cluster_map import ClusterMap, LoneNode, NodePlace, ReplicaPlaces
from onelog.log.config import (
    NO_BOUND_MS,
    STORED_AS,
    Cleanup,
    Compaction,
    Replication,
    Retention,
    StreamConfig,
    check_fields,
)
from onelog.log.handle import (
    Appended,
    Cold,
    Ends,
    PartitionFacts,
    PartitionHandle,
    ProducerFacts,
    SegmentInfo,
    TierLag,
    TierStatus,
)
from onelog.log.internal import check_known, kept_batches, rows_there
from onelog.log.moves import Move, SourceKey
from onelog.log.offloading import Offloaded
from onelog.log.promises import Durability, Timestamps
from onelog.log.stream import Stream
from onelog.log.tier_config import ColdFormat, TierConfig
from onelog.log.tier_tasks import StoredStream, TierInfo, TierTask
from onelog.log.tiering import TierLimits
from onelog.log.touched import Touched
from onelog.log.wakeup import Callback, Waiter, as_future
from onelog.metadata.once import written_once
from onelog.metadata.parts import in_parts
from onelog.metadata.projection import Change, Projection
from onelog.metadata.store import Delete, Entry, MetadataStore, Op, Put
from onelog.record.record import Message, Record

__all__ = [
    "NOWHERE",
    "Broker",
    "BrokerSettings",
    "BackupRun",
    "Backups",
    "MAIN",
    "MAIN_CONFIG",
    "Message",
    "Record",
    "Published",
    "KeptTable",
    "check_known",
    "kept_batches",
    "rows_there",
    "address_at",
    "check_here",
    "until_visible",
    "KeptRow",
    "Kind",
    "NamedView",
    "Redriven",
    "places",
    "redrive",
    "seek",
    "NamedViews",
    "Notice",
    "Home",
    "Live",
    "LiveListener",
    "LiveSource",
    "Publisher",
    "CursorDesk",
    "Cursor",
    "CursorKind",
    "CursorState",
    "Position",
    "Reading",
    "Source",
    "Wait",
    "QueueWait",
    "ignore_change",
    "Start",
    "EARLIEST",
    "LATEST",
    "TailCursor",
    "OffsetCursor",
    "Committed",
    "OffsetSet",
    "SessionCursor",
    "SessionDelivery",
    "QueueCursor",
    "RoutedCursor",
    "QueueSettings",
    "Acquired",
    "Adopted",
    "DeadLetter",
    "TableCursor",
    "StoredStream",
    "Stream",
    "Touched",
    "PartitionHandle",
    "Ends",
    "Observing",
    "PartitionFacts",
    "ProducerFacts",
    "SegmentInfo",
    "Appended",
    "Cold",
    "Callback",
    "Waiter",
    "as_future",
    "Move",
    "SourceKey",
    "StreamConfig",
    "TierConfig",
    "Offloaded",
    "TierInfo",
    "TierLag",
    "TierTask",
    "TierLimits",
    "TierStatus",
    "ColdFormat",
    "check_fields",
    "NO_BOUND_MS",
    "STORED_AS",
    "Replication",
    "Retention",
    "ClusterMap",
    "ClusterNodes",
    "LoneNode",
    "NodePlace",
    "ReplicaPlaces",
    "NO_NODE",
    "Cleanup",
    "Compaction",
    "Durability",
    "Timestamps",
    "Session",
    "SessionRecord",
    "SharedRead",
    "Sessions",
    "Principal",
    "LOCAL",
    "NOBODY",
    "Action",
    "Authorizer",
    "AllowAll",
    "AppendSpans",
    "AUDIT_FILTER",
    "AUDIT_STREAM",
    "AuditEvent",
    "AuditSink",
    "AuditTrail",
    "NoAudit",
    "decode_event",
    "login_failed",
    "note_failed_login",
    "outcome_of",
    "NotedPublisher",
    "Spans",
    "Quotas",
    "Unlimited",
    "MetadataStore",
    "written_once",
    "in_parts",
    "Projection",
    "Change",
    "Entry",
    "Op",
    "Put",
    "Delete",
]
