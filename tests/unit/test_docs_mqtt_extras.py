"""The Python examples of the guide to MQTT's extras run."""

from __future__ import annotations

import re
from pathlib import Path

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guide" / "mqtt-extras.md"


def test_the_examples_of_the_guide_run():
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert blocks, "the guide has lost its Python examples"
    for block in blocks:
        exec(compile(block, str(GUIDE), "exec"), {})
