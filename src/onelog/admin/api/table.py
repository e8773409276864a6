"""The one table: every operation of the API."""

from __future__ import annotations

from onelog.admin.api.access import AccessOperations
from onelog.admin.api.audit import AuditOperations
from onelog.admin.api.backups import BackupOperations
from onelog.admin.api.cluster import ClusterOperations
from onelog.admin.api.connections import ConnectionOperations
from onelog.admin.api.cursors import CursorOperations
from onelog.admin.api.declaring import AnyEvents, AnyOperation
from onelog.admin.api.desk import AdminDesk
from onelog.admin.api.events import EventStreams
from onelog.admin.api.logins import LoginSessions
from onelog.admin.api.messages import MessageOperations
from onelog.admin.api.overview import OverviewOperations
from onelog.admin.api.people import PeopleOperations
from onelog.admin.api.picture import PictureOperations
from onelog.admin.api.pipelines import PipelineOperations
from onelog.admin.api.protocols import ProtocolOperations
from onelog.admin.api.quotas import QuotaOperations
from onelog.admin.api.rates import RateBook
from onelog.admin.api.retained import RetainedOperations
from onelog.admin.api.settings import SettingOperations
from onelog.admin.api.store import StoreOperations
from onelog.admin.api.streams import StreamOperations
from onelog.admin.api.topics import TopicOperations
from onelog.admin.api.topology import TopologyOperations
from onelog.admin.api.views import ViewOperations
from onelog.base.clock import Clock


def operations(desk: AdminDesk, logins: LoginSessions, clock: Clock) -> list[AnyOperation]:
    """Everything that can be asked."""
    return [
        *OverviewOperations(desk, RateBook(clock)).table(),
        *ConnectionOperations(desk).table(),
        *StreamOperations(desk).table(),
        *CursorOperations(desk).table(),
        *ViewOperations(desk).table(),
        *TopicOperations(desk).table(),
        *PictureOperations(desk, clock).table(),
        *MessageOperations(desk).table(),
        *ProtocolOperations(desk).table(),
        *RetainedOperations(desk).table(),
        *TopologyOperations(desk).table(),
        *PipelineOperations(desk).table(),
        *PeopleOperations(desk, logins).table(),
        *AccessOperations(desk).table(),
        *QuotaOperations(desk).table(),
        *SettingOperations(desk).table(),
        *AuditOperations(desk).table(),
        *BackupOperations(desk).table(),
        *StoreOperations(desk).table(),
        *ClusterOperations(desk).table(),
    ]


def event_streams(desk: AdminDesk, clock: Clock) -> list[AnyEvents]:
    """Everything that can be followed."""
    return EventStreams(desk, clock).table()
