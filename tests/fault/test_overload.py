"""Does the broker keep every promise while others flood it, stall, or come and go? (I4, I5, I8)"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import pytest

from tests.conformance.mqtt_brokers import Onelog
from tests.support.bad_company import BadCompany, Growth, Watch
from tests.support.mixed import SETTINGS, MixedRun

MIB = 1024 * 1024
OVERLOAD_MIB_MAX = 400
"""What a server may grow by while it is flooded: every peer's share is bounded."""
VISIT_BYTES_MAX = 128
KIND_SPARE_BYTES = MIB
"""What a visit may leave behind once everything that is bounded is full, and a kind of visits in
all. Each kind comes 10,000 times while it counts: one that leaves 256 bytes behind is found."""
VISITS_MIN = 10
"""Of each kind: few enough for any machine, and none may be missing."""
SOAK_S = float(os.environ.get("ONELOG_SOAK_S") or 30 * 60)


@pytest.mark.fault
def test_promises_hold_while_floods_stalled_readers_and_hoarders_overload_the_broker(
    tmp_path: Path,
):
    """A hot partition as fast as sockets take it, readers that never read, one that never acks."""
    server = Onelog(tmp_path, *SETTINGS).start()
    run, bad, watch = MixedRun(server, pause_s=0.05), BadCompany(server), Watch(server)
    try:
        run.prepare()
        watch.look()
        bad.begin(
            *[bad.flood_hot_topic] * 5,
            *[bad.stall_mqtt] * 3,
            bad.stall_amqp,
            bad.stall_kafka,
            bad.never_acknowledge,
        )
        run.begin(write=True)
        watch.look_for(8, 0.5)
        run.wait(lambda: bad.done > 1000, "there was no flood")
        run.wait(lambda: len(run.history.known) > 100, "well-behaved writers are starved")
        ended_s = time.monotonic()
        run.end()
        bad.end()
        # The views' connections begin anew. Acknowledgements that the broker had not read when the
        # old ones ended are lost with them.
        run.history.broken(at_s=ended_s)
        run.catch_up()
        assert not run.findings()
        assert max(watch.rss_bytes) - watch.rss_bytes[0] < OVERLOAD_MIB_MAX * MIB, watch.words()
        assert server.stop() == 0
        assert not server.errors()
    finally:
        server.kill()


@pytest.mark.fault_long
def test_memory_and_descriptors_stay_flat_while_clients_come_and_go_for_half_an_hour(
    tmp_path: Path,
):
    server = Onelog(tmp_path, *SETTINGS).start()
    run, bad, watch = MixedRun(server, pause_s=0.5), BadCompany(server), Watch(server)
    growth = Growth(bad, watch)
    try:
        run.prepare()
        run.begin(write=True)
        bad.begin(*[bad.come_and_go] * 4, bad.make_topics)
        growth.look_for(SOAK_S)
        bad.end()
        ended_s = time.monotonic()
        run.end()
        print(watch.words(), f"{len(run.history.known)} messages", bad.visits)  # noqa: T201
        print(growth.words())  # noqa: T201
        run.history.broken(at_s=ended_s)  # as above
        run.catch_up()
        assert not run.findings()
        assert bad.visits.keys() == bad.visitors.keys(), f"some never came: {bad.visits}"
        assert min(bad.visits.values()) >= VISITS_MIN, f"hardly anybody came: {bad.visits}"
        assert bad.failed.total() <= bad.visits.total() / 100, f"visits failed: {bad.failed}"
        quarter = len(watch.files) // 4
        between = bad.visits.total() / 2  # from the middle of one quarter to that of the other
        spare_bytes = 16 * MIB + VISIT_BYTES_MAX * between
        leaking = growth.beyond(KIND_SPARE_BYTES, VISIT_BYTES_MAX)
        assert not leaking, f"{leaking} leave something behind:\n{growth.words()}"
        for name, rows, spare in (
            ("RSS", watch.rss_bytes, spare_bytes),
            ("files", watch.files, 16),
        ):
            early = statistics.median(rows[quarter : 2 * quarter])
            late = statistics.median(rows[-quarter:])
            assert late <= early + spare, f"{name} grows: {watch.words()}\n{growth.words()}"
        assert server.stop() == 0
        assert not server.errors()
    finally:
        server.kill()
