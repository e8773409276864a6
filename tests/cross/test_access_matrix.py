"""Rules by protocols by operations by what happens to the rules while things are open.

The table of operations is in `access_operations.py`. For each of them, on real sockets:
without rules it is done; when there is another rule it is refused; with the rights that it needs
it is done, on what was open before; without any one of them it is refused; a rule that denies wins;
and without rules it is done again.
"""

from __future__ import annotations

import pytest

from tests.cross.access_operations import YES, Operation, cases
from tests.support.access import house

OTHER = "allow user:somebody-else publish topic:elsewhere"


def allowed(rights: tuple[str, ...], who: str = "anonymous") -> list[str]:
    return [f"allow {who} {right}" for right in rights]


@pytest.mark.parametrize("operation", cases(), ids=lambda row: f"{row.protocol}-{row.name}")
async def test_an_operation_needs_its_rights_and_hears_when_they_change(tmp_path, operation):
    await _check(tmp_path, operation)


async def _check(tmp_path, operation: Operation) -> None:
    rights, refused = operation.rights, operation.refused
    given = allowed(operation.given)
    async with house(tmp_path) as place:
        act = await operation.begin(place)
        assert await act() == YES, "without rules"
        await place.only(OTHER, *given)
        assert await act() == refused, "another rule: what no rule allows is denied"
        for who in ("anonymous", "everyone"):
            await place.only(OTHER, *given, *allowed(rights, who))
            assert await act() == YES, f"allowed for {who} while it was open"
        for left_out in rights:
            others = tuple(right for right in rights if right != left_out)
            await place.only(*given, *allowed(others), *allowed((left_out,), "user:ann"))
            assert await act() == refused, f"without {left_out}"
            await place.only(*given, *allowed(rights), f"deny everyone {left_out}")
            assert await act() == refused, f"denied {left_out}"
        await place.only()
        assert await act() == YES, "without rules again"
