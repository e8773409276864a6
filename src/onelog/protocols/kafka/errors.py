"""Kafka's own error, and the complete table from the errors of `base` to Kafka's error codes.

Rules: every class of the error tree has a row; a class without one fails a test. A code that a
client takes as retriable is used only where trying again may help.
"""

from __future__ import annotations

from typing import Final

from kio.schema.errors import ErrorCode

from onelog.base import errors

__all__ = ["CODES", "ErrorCode", "KafkaError", "code_of"]


class KafkaError(errors.OnelogError):
    """A request, or a part of one, cannot be served; `code` goes to the client."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


_E = ErrorCode

CODES: Final[dict[type[errors.OnelogError], ErrorCode]] = {
    errors.OnelogError: _E.unknown_server_error,
    errors.InvalidRequest: _E.invalid_request,
    errors.InvalidName: _E.invalid_topic_exception,
    errors.ConfigError: _E.invalid_config,
    errors.NotFound: _E.unknown_topic_or_partition,
    errors.StreamNotFound: _E.unknown_topic_or_partition,
    errors.TopicNotFound: _E.unknown_topic_or_partition,
    errors.CursorNotFound: _E.group_id_not_found,
    errors.AlreadyExists: _E.topic_already_exists,
    errors.Conflict: _E.concurrent_transactions,
    errors.NotAuthenticated: _E.sasl_authentication_failed,
    errors.NotAuthorized: _E.topic_authorization_failed,
    errors.QuotaExceeded: _E.throttling_quota_exceeded,
    errors.LimitExceeded: _E.policy_violation,
    errors.MessageTooLarge: _E.message_too_large,
    errors.CorruptBatch: _E.corrupt_message,
    errors.UnsupportedMagic: _E.unsupported_for_message_format,
    errors.InvalidRecords: _E.invalid_record,
    errors.UnsupportedCodec: _E.unsupported_compression_type,
    errors.OffsetOutOfRange: _E.offset_out_of_range,
    errors.OutOfOrderSequence: _E.out_of_order_sequence_number,
    errors.DuplicateSequence: _E.duplicate_sequence_number,
    errors.ProducerFenced: _E.invalid_producer_epoch,
    errors.UnknownProducer: _E.unknown_producer_id,
    errors.InvalidTxnState: _E.invalid_txn_state,
    errors.StorageError: _E.kafka_storage_error,
    errors.StorageFull: _E.kafka_storage_error,
    errors.PartitionStopped: _E.kafka_storage_error,
    errors.PartitionCorrupt: _E.kafka_storage_error,
    errors.ColdUnavailable: _E.kafka_storage_error,
    errors.ColdDamaged: _E.kafka_storage_error,
    errors.NotLeader: _E.not_leader_or_follower,
    errors.NotOwner: _E.not_coordinator,
    errors.Fenced: _E.fenced_leader_epoch,
    errors.StoreFenced: _E.kafka_storage_error,
    errors.Unavailable: _E.coordinator_not_available,
    errors.StateUnknown: _E.coordinator_not_available,
    errors.StateLoading: _E.coordinator_load_in_progress,
    errors.Closed: _E.not_leader_or_follower,
    errors.Timeout: _E.request_timed_out,
    errors.OutcomeUnknown: _E.request_timed_out,
    errors.ProtocolViolation: _E.invalid_request,
    errors.DataDirLocked: _E.unknown_server_error,
}


def code_of(error: errors.OnelogError) -> ErrorCode:
    """The code of an error for the client."""
    if isinstance(error, KafkaError):
        return error.code
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)
