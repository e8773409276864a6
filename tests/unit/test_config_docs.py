"""The generated reference pages are what `make docs` would write now."""

from __future__ import annotations

import pytest

from tools import gen_config_docs, gen_limits_docs


@pytest.mark.parametrize("generator", [gen_config_docs, gen_limits_docs])
def test_a_generated_page_is_up_to_date(generator):
    assert generator.PAGE.read_text() == generator.render(), "run `make docs`"
