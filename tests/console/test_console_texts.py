"""Texts of the console in a real Chromium: labels of axes, and what search fields say."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from playwright.sync_api import ViewportSize, expect

from tests.console.browsing import PHONE, WIDE
from tests.console.pictures import PICTURES

TABLET = ViewportSize(width=820, height=1000)
DRAWN = """
window.drawn = new Map();
const draw = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  if (!window.drawn.has(this.canvas)) window.drawn.set(this.canvas, []);
  window.drawn.get(this.canvas).push([text, Math.round(x), Math.round(y)]);
  return draw.apply(this, arguments);
};
const clear = CanvasRenderingContext2D.prototype.clearRect;
CanvasRenderingContext2D.prototype.clearRect = function () {
  window.drawn.delete(this.canvas);
  return clear.apply(this, arguments);
};
"""
"""Keeps what was written into each canvas since it was empty: uPlot draws the labels of axes."""
CUT = """() => [...document.querySelectorAll("input[placeholder]")]
  .filter((input) => input.checkVisibility() && input.value === "")
  .map((input) => {
    const style = getComputedStyle(input);
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = style.font;
    const room = input.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    return [input.placeholder, pen.measureText(input.placeholder).width - room];
  })
  .filter(([, over]) => over > -6)"""
"""Fields that are too narrow for what they say; fonts of other systems are a little wider."""


def repeated(drawn: list[tuple[str, int, int]]) -> list[str]:
    """Labels of one axis that follow each other and say the same."""
    rows: dict[tuple[str, int], list[tuple[int, str]]] = {}
    for text, x, y in drawn:
        rows.setdefault(("column", x), []).append((y, text))
        rows.setdefault(("row", y), []).append((x, text))
    return [
        first[1]
        for row in rows.values()
        for first, second in itertools.pairwise(sorted(row))
        if first[1] == second[1] and first[1]
    ]


@pytest.mark.parametrize("place", ["overview", "cursors?name=kafka%3Abilling"])
def test_no_two_labels_of_an_axis_say_the_same(scene, visit, place):
    visitor = visit(scene)
    visitor.page.add_init_script(DRAWN)
    page = visitor.go(place)
    expect(page.locator(".plot canvas").first).to_be_visible()
    seen = 0
    for _ in range(12):  # the first points are close together, later ones are not
        page.wait_for_timeout(500)
        found: list[list[Any]] = page.evaluate("[...window.drawn.values()]")
        for drawn in found:
            seen += len(drawn)
            assert not repeated([tuple(row) for row in drawn]), drawn
    assert seen


@pytest.mark.parametrize("shape", [WIDE, TABLET, PHONE], ids=["wide", "tablet", "phone"])
def test_what_a_search_field_says_fits_into_it(scene, visit, shape):
    visitor = visit(scene, viewport=shape)
    cut = {}
    for name, address in PICTURES.items():
        page = visitor.go(address)
        expect(page.locator("main")).not_to_contain_text("Loading…")
        found = page.evaluate(CUT)
        if found:
            cut[name] = found
    assert not cut
