"""`make bench-growth`: what was measured is kept, whatever fails later."""

from __future__ import annotations

import contextlib

import pytest

from bench import growth, report
from bench.growth import CURVES, PARTS, Broker, Point
from bench.page_growth import curves_of
from bench.page_results import take_in
from bench.page_rows import figure

KIND = PARTS["partitions"]


@pytest.fixture
def results(tmp_path, monkeypatch):
    """The folder of results; no broker and no load generator is real."""
    monkeypatch.setattr(report, "RESULTS", tmp_path / "bench")
    monkeypatch.setattr(report, "ROOT", tmp_path)
    monkeypatch.setattr(report.origin, "measured_now", lambda _folder: {})
    monkeypatch.setattr(report.origin, "write", lambda _path, _origin: None)
    monkeypatch.setattr(growth.against, "broker", lambda *_: contextlib.nullcontext((1, 2)))
    for module in (growth.mqtt, growth.amqp_load, growth.kafka_load):
        name = "build_load" if module is growth.mqtt else "build"
        monkeypatch.setattr(module, name, lambda: None)
    return tmp_path / "bench"


def measured_by(monkeypatch, measure):
    for kind, growing in list(CURVES.items()):
        monkeypatch.setitem(CURVES, kind, growing._replace(measure=measure))


def test_each_curve_has_a_name_of_its_own_on_the_command_line():
    assert list(PARTS.values()) == list(CURVES)


def test_curves_that_are_measured_one_by_one_are_all_on_the_page(results, monkeypatch, tmp_path):
    measured_by(monkeypatch, lambda _broker, count: Point(1.0, float(count)))
    for part in PARTS:
        assert growth.main([part, "--alone", "--most", "10"]) == 0
    kept = take_in(tmp_path / "kept", results)["growth"]
    curves = curves_of([figure("growth", row) for row in kept.rows()])
    assert {curve.kind for curve in curves} == set(CURVES)
    assert all(len(curve.points) == 2 for curve in curves)


def test_a_point_that_fails_takes_neither_the_points_before_it_nor_other_curves(
    results, monkeypatch, tmp_path
):
    def measure(_broker, count):
        if count > 10:
            raise SystemExit("the generator failed")
        return Point(1.0, 2.0)

    measured_by(monkeypatch, measure)
    assert growth.main(["--alone"]) == 1
    kept = take_in(tmp_path / "kept", results)["growth"]
    assert len(kept.rows()) == len(CURVES) * 2 * 2


def test_a_side_begins_no_point_when_its_time_is_over(monkeypatch):
    measured_by(monkeypatch, lambda _broker, _count: Point(1.0, 2.0))
    monkeypatch.setattr(growth, "SIDE_S", -1.0)
    found = growth.side(Broker("onelog", 1, "2"), KIND, 10)
    assert found == growth.Side({})


def test_a_round_in_which_nothing_came_is_not_the_cheapest(monkeypatch):
    costs = iter([0.0, 3.0, 2.0])

    def run(_program, _broker, *_options):
        return {"broker_us_per_recv": next(costs, 1.0), "p50_us": 5.0}

    monkeypatch.setattr(growth, "run", run)
    broker = Broker("onelog", 1, "2")
    assert growth.of_load(growth.mqtt.LOAD, broker, (), ()).cpu_us == 2.0
