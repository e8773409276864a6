"""What the admin API shows of the process, streams and cursors.

Rules: this module imports only `base` and msgspec, because the CLI shares it. Lists come in pages,
ordered by name or number, so that ten thousand partitions never hold the loop.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

PAGE_DEFAULT: Final = 100
PAGE_MAX: Final = 1000


class RetentionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """When records may go."""

    age_ms: int | None
    """None: not by age."""
    bytes: int | None
    """None: not by size."""
    consumed: bool
    """Whether records go once every durable cursor is past them."""


class TroubleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong inside at one place and was survived, or still lasts."""

    kind: str
    place: str
    error: str
    count: int
    first_ms: int
    last_ms: int
    standing: bool
    """Whether it lasts; else it is an incident that is over."""
    facts: dict[str, str | int] = {}
    """Of the last incident: the offset and the topic, if it concerned a record, and others."""


class StreamInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One stream and its settings."""

    name: str
    id: str
    captures: tuple[str, ...]
    partitions: int
    engine: str
    durability: str
    retention: RetentionInfo
    cleanup: str
    """`delete`, `compact` or `compact,delete`."""
    tier: str
    """How history goes to the object store: `log`, `iceberg`, `delta`; empty: not at all."""
    internal: bool
    """Whether the broker made it for itself."""
    size_bytes: int
    records: int
    """Offsets between start and end that are no markers of transactions, over all partitions;
    compaction leaves gaps in them."""


class PartitionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One partition's offsets and size."""

    partition: int
    start_offset: int
    end_offset: int
    high_watermark: int
    last_stable_offset: int
    durable_offset: int
    local_start_offset: int
    """First offset that is on this machine; below it records are in the object store."""
    size_bytes: int
    """In every place, each byte once."""
    cold_bytes: int
    """In the object store."""
    segments: int
    state: str
    """`running`, or `stopped: ` and why."""


class StoredSegment(msgspec.Struct, frozen=True, kw_only=True):
    """One segment of a partition."""

    base_offset: int
    end_offset: int
    size_bytes: int
    newest_ms: int | None
    """The greatest timestamp in it; None: it is empty."""
    sealed: bool
    """Whether nothing is added to it any more."""
    created_ms: int
    place: str
    """`local`, `cold` (only in the object store) or `both`."""


class CursorPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Where a cursor stands in one partition."""

    stream: str
    partition: int
    offset: int
    """Everything below it is done."""
    end: int
    """Where the partition ends for readers."""


class CursorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One cursor and how far it is."""

    name: str
    kind: Literal["tail", "offset", "session", "queue", "routed", "table", "group"]
    protocol: str
    """Who uses it: `mqtt`, `amqp`, `kafka`, or `embedded`."""
    filter: str
    durable: bool
    """Whether its state survives a restart."""
    positions: tuple[CursorPosition, ...]
    lag: int
    """Offsets between its positions and the ends."""
    pending: int
    """Records handed out and not settled."""
    connected: int
    """Consumers attached right now."""


class TargetProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a pipeline is with one of its targets."""

    target: str
    batch: int
    """The last micro-batch that is done; -1: none."""
    rows: int
    rows_per_s: float
    lag: int
    batch_ms: int
    at: str
    state: str


class PipelineInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a pipeline."""

    name: str
    phase: str
    """`starting`, `running`, `done`, `stopped`, `failed` or `killed`."""
    file: str
    master: str
    mode: str
    pid: int
    started: str
    error: str
    targets: tuple[TargetProgress, ...]


class ListenerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What listens where."""

    name: str
    address: str
    url: str = ""
    """The same as clients write it."""


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """This process."""

    version: str
    node_id: int
    node_name: str
    pid: int
    python: str
    event_loop: str
    kernel: Literal["compiled", "interpreted"]
    kernel_warning: str = ""
    """What is wrong with it and what to do; empty: nothing."""
    data_dir: str
    config_file: str | None
    started_ms: int
    uptime_s: float
    listeners: tuple[ListenerInfo, ...]


class PassAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How a command on this machine reaches the admin API; the answer to `api.pass`."""

    url: str = ""
    """Of the admin listener; empty: it is off."""
    token: str = ""
    cert_file: str = ""
    """The certificate that the listener shows, if it speaks TLS."""
    error: str = ""
    """The class of the error; empty when all went well."""
    message: str = ""


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request failed."""

    code: str
    message: str


class ErrorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every answer with a status of 400 and above."""

    error: ErrorBody
