"""The page of the benchmarks: what is worse comes first, and it is what its results generate."""

from __future__ import annotations

import json
import os
import re

import pytest

from bench import amqp, kafka
from bench import page as making
from bench.growth import CURVES
from bench.page_growth import curves_of
from bench.page_results import Run, merge, read_kept, take_in
from bench.page_rows import figure, number
from bench.page_texts import BENCHES
from bench.page_writing import page
from bench.report import row

MACHINE = {"cores": 2, "processor": "Some", "memory_gib": 8.0, "system": "Linux 6", "sync_us": 90}


def a_run(*rows, date="2026-01-01 10:00:00 UTC"):
    return Run(date, "abc", MACHINE, {"Mosquitto": "2.0"}, list(rows))


def ratio(name, value, *, bar=None, low=False, peer=("Mosquitto, msg/s", 1000.0)):
    return row(name, value, "ratio", bar, low=low, peer=peer)


def section(text, title):
    """From a heading to the next one of its rank."""
    return text.partition(f"## {title}\n")[2].partition("\n## ")[0]


def svg_texts(path):
    return re.findall(r"<text[^>]*>([^<]*)<", path.read_text())


def test_what_is_worse_than_a_peer_comes_first_the_worst_at_the_top():
    rows = [
        ratio("good", 3.0),
        ratio("bad", 0.9),
        ratio("worst", 0.4),
        ratio("late", 1.5, low=True, bar=2.0, peer=("Mosquitto, us", 100.0)),
        ratio("soon", 0.5, low=True, bar=2.0, peer=("Mosquitto, us", 100.0)),
    ]
    text = page({"mqtt": merge("mqtt", [a_run(*rows)])})
    worse = section(text, "Where OneLog is worse than a peer")
    found = re.findall(r"\| (good|bad|worst|late|soon) \|", worse)
    assert found == ["worst", "late", "bad"]
    assert text.index("worse than a peer") < text.index("## MQTT beside Mosquitto")
    assert "3 of 5 comparisons" in worse


def test_a_missed_bar_is_among_the_worse_even_where_the_peer_is_behind():
    rows = [ratio("missed", 1.5, bar=2.0), ratio("held", 2.5, bar=2.0), row("plain", 9, "MB", 5)]
    rows[2] = row("too much", 9, "MB", 5, low=True)
    worse = section(
        page({"mqtt": merge("mqtt", [a_run(*rows)])}), "Where OneLog is worse than a peer"
    )
    assert "None of 2 comparisons" in worse
    assert "| missed | 1,500 msg/s | 2,000 msg/s | Mosquitto: 1,000 msg/s |" in worse
    assert "too much" in worse
    assert "held" not in worse


def test_our_figure_is_the_ratio_times_the_peers_in_the_peers_unit():
    one = figure("kafka", ratio("os, raw, MB/s", 0.5, peer=("Kafka", 200.0)))
    assert (one.ours, one.theirs, one.unit, one.name) == (100.0, 200.0, "MB/s", "os, raw")
    assert one.is_behind
    share = figure(
        "log", row("exact / scan", 4, "%", 5, low=True, peer=("wildcard cursor, ms", 50))
    )
    assert (share.ours, share.bar, share.unit) == (2.0, 2.5, "ms")


@pytest.mark.parametrize("side", ["without, msg/s", "base, us", "interpreted", "one queue, msg/s"])
def test_onelog_in_another_state_is_no_peer(side):
    one = figure("views", ratio("beside itself", 0.5, peer=(side, 10.0)))
    assert not one.is_behind
    assert figure("views", ratio("beside others", 0.5, peer=("NewBroker, msg/s", 1.0))).is_behind


def test_whether_less_is_better_follows_from_the_bar_and_else_from_the_unit():
    old = {key: value for key, value in row("x", 5, "ms", 4, low=True).items() if key != "low"}
    assert figure("log", old).is_low
    assert figure("log", row("x", 5, "us/request", peer=("cp", 1.0))).is_low
    assert not figure("log", row("x", 5, "MB/s", peer=("cp", 1.0))).is_low


def test_a_benchmark_without_results_is_named_and_fails_nothing():
    text = page({"mqtt": merge("mqtt", [a_run(ratio("good", 3.0))])})
    missing = section(text, "Not measured yet")
    assert "`make bench-kafka`" in missing
    assert "`make bench-mqtt`" not in missing
    assert page({}).count("make bench-") >= len(BENCHES)


def test_cases_that_were_not_repeated_stay_and_a_second_taking_in_changes_nothing(tmp_path):
    new, kept = tmp_path / "new", tmp_path / "kept"
    new.mkdir()

    def measured(rows, date):
        (new / "mqtt.json").write_text(json.dumps(rows))
        origin = {"date": date, "commit": "abc", "machine": MACHINE, "versions": {}}
        (new / "mqtt.origin.json").write_text(json.dumps(origin))

    measured([ratio("a", 1.0), ratio("b", 2.0)], "2026-01-01 10:00:00 UTC")
    take_in(kept, new)
    measured([ratio("a", 5.0)], "2026-01-02 10:00:00 UTC")
    twice = [take_in(kept, new) for _ in range(2)]
    assert twice[0] == twice[1] == read_kept(kept)
    found = {one["name"]: one["value"] for one in twice[1]["mqtt"].rows()}
    assert found == {"a": 5.0, "b": 2.0}
    assert [run.date[:10] for run in twice[1]["mqtt"].runs] == ["2026-01-01", "2026-01-02"]
    only = take_in(kept, new, replace=True)
    assert [one["name"] for one in only["mqtt"].rows()] == ["a"]


def test_parts_of_a_benchmark_and_rows_without_an_origin_are_taken_in(tmp_path):
    for name in ("log-broker", "log-kernel"):
        (tmp_path / f"{name}.json").write_text(json.dumps([row(name, 1, "msg/s")]))
        os.utime(tmp_path / f"{name}.json", (1_700_000_000, 1_700_000_000))
    found = take_in(tmp_path / "kept", tmp_path)
    assert {one["name"] for one in found["log"].rows()} == {"log-broker", "log-kernel"}
    assert "commit not recorded" in page(found)


def test_a_case_that_failed_is_shown_as_failed_and_drawn_nowhere(tmp_path):
    failed = [ratio("gone", 0.0), row("p99", float("inf"), "us", peer=("Mosquitto, us", 3.0))]
    benches = {"mqtt": merge("mqtt", [a_run(*failed, ratio("good", 2.0))])}
    assert "| failed us |" in page(benches)
    assert "**0x**" in section(page(benches), "Where OneLog is worse than a peer")
    (made,) = making.draw(tmp_path, benches)
    assert "good" in svg_texts(made)
    assert "gone" not in svg_texts(made)


def test_pictures_are_the_same_every_time_and_hold_no_font(tmp_path):
    benches = {"mqtt": merge("mqtt", [a_run(ratio("one", 2.0), ratio("two", 0.5))])}
    first, second = (making.draw(tmp_path / name, benches)[0].read_text() for name in "ab")
    assert first == second
    assert "<text" in first
    assert "font-face" not in first
    assert "dc:date" not in first


def test_the_rows_of_growth_are_curves_of_both_sides_and_the_page_says_how_they_rise(tmp_path):
    rows = []
    for kind, growing in CURVES.items():
        for count, cost in ((1, 2.0), (10_000, 5.0), (100, 3.0)):
            for unit in (growing.unit, growing.waits):
                peer = (f"Mosquitto, {unit}", 8.0) if count < 1_000 else None
                rows.append(row(f"{kind}, {count:,}: {unit}", cost, unit, peer=peer))
    benches = {"growth": merge("growth", [a_run(*rows)])}
    curves = curves_of(making.figures_of(benches)["growth"])
    assert {curve.kind for curve in curves} == set(CURVES)
    assert len(curves) == 4 * len(CURVES)
    ours = [curve for curve in curves if curve.side == "OneLog"]
    assert all(curve.points == [(1, 2.0), (100, 3.0), (10_000, 5.0)] for curve in ours)
    assert "| 2 at 1 | 5 at 10,000 | 2.5x |" in page(benches)
    (made,) = making.draw(tmp_path, benches)
    assert set(CURVES) <= set(svg_texts(made))


def kept_bars(bench):
    return {one["name"]: one["bar"] for one in read_kept(making.KEPT)[bench].rows()}


def test_the_bars_of_kafka_and_amqp_are_those_that_were_promised():
    """Issue 16's goals; the kept results are judged by the bars that the benchmarks have now."""
    promised = {
        "kafka": {
            f"os, {load} {size} B, MB/CPU-s": 1.8
            for load in ("librdkafka, both", "16 KB batches, consume")
            for size in (100, 1024)
        },
        "amqp": {
            f"{queue}, 100 pairs, {load}": bar
            for queue in ("classic", "quorum")
            for load, bar in (
                ("window 20: msg/s", 14),
                ("one message each: msg per CPU-second", 8),
            )
        },
    }
    for bench, bars in promised.items():
        assert bars.items() <= kept_bars(bench).items()


def test_kept_results_are_judged_by_the_bars_that_the_benchmarks_have_now():
    for name, bar in kept_bars("kafka").items():
        policy, _, case = name.partition(", ")
        if (case := case.removesuffix(", MB/CPU-s")) in kafka.THROUGHPUT:
            assert bar == kafka.PER_CPU_BARS.get(case, kafka.PER_CPU_BAR), (policy, case)
    assert set(kafka.PER_CPU_BARS) <= set(kafka.THROUGHPUT)
    for name, bar in kept_bars("amqp").items():
        case, _, unit = name.partition(", ")[2].partition(": ")
        if case in amqp.CASES:
            assert bar == amqp.CASES[case][1 if unit == "msg/s" else 2], name
    for bench in read_kept(making.KEPT).values():
        for one in bench.rows():
            again = row(
                one["name"], one["value"], one["unit"], one["bar"], low=bool(one.get("low"))
            )
            assert one["holds"] == again["holds"], one["name"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(12_333_919, "12.3 M"), (69_235, "69.2 k"), (2968, "2,968"), (1.234, "1.23"), (0.0, "0")],
)
def test_numbers_are_short(value, text):
    assert number(value) == text


def test_the_committed_page_is_the_one_that_its_committed_results_generate(tmp_path):
    benches = read_kept(making.KEPT)
    assert making.PAGE.read_text() == page(benches), "run `make bench-page`"
    for made in making.draw(tmp_path, benches):
        kept = making.PAGE.with_suffix("") / made.name
        assert svg_texts(kept) == svg_texts(made), "run `make bench-page`"
    assert not re.search(r"(?<![\w.])/(?:tmp|var|usr|opt)/", making.PAGE.read_text())
