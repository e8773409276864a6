"""MQTT's subscribers that are behind, interpreted: the records of a batch at some places go to all.

Rules: as `MqttFanout.deliver` for the records at these places, but nothing is written: the caller
writes when it has gone over more batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onelog.kernel.pure.records import decode_batch

if TYPE_CHECKING:
    from onelog.kernel.pure.mqtt_fanout import MqttFanout
    from onelog.kernel.pure.mqtt_output import MqttOutput
    from onelog.kernel.types import Buffer


def deliver_places(
    fanout: MqttFanout, data: Buffer, offsets: list[int], partition: int, now_ms: int
) -> tuple[int | None, list[MqttOutput], list[tuple[MqttOutput, int]]]:
    """Give the records of one plain batch at ascending offsets to the fan-out's subscribers.

    Offsets without a record are left out. Returns the offset of the record that could not be
    delivered, or None; the subscribers that have bytes to write; and those that fell behind, with
    the offset of the first record that they did not get. A damaged batch raises CorruptBatch.
    """
    touched: list[MqttOutput] = []
    fallen: list[tuple[MqttOutput, int]] = []
    slices = decode_batch(data, 0, None, False)
    places = {slices.offset(index): index for index in range(len(slices))}
    for offset in offsets:
        index = places.get(offset)
        topic = None if index is None else slices.topic(index)
        if index is None or topic is None:
            continue
        _offset, _time, _key, value, headers = slices.record(index)
        try:
            fanout.deliver_record(
                topic, value or b"", headers, (partition, offset), now_ms, touched, fallen
            )
        except Exception:  # noqa: BLE001 - the next read from there meets it again, alone
            return offset, touched, fallen
    return None, touched, fallen
