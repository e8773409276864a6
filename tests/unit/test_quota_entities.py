"""Who a quota is for and what it bounds, as people write it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onelog.base.errors import InvalidName, InvalidRequest
from onelog.security.quotas.entities import (
    QuotaEntity,
    check_entity,
    check_limits,
    parse_entity,
)

NAMES = st.text(st.characters(codec="utf-8"), max_size=40)


@given(user=st.none() | NAMES, client=st.none() | NAMES)
def test_every_user_and_client_can_be_written_and_read_back(
    user: str | None, client: str | None
) -> None:
    if user is None and client is None:
        return
    entity = QuotaEntity(user=user, client=client)
    assert parse_entity(entity.text) == entity


@pytest.mark.parametrize(
    ("text", "entity"),
    [
        ("user", QuotaEntity(user="")),
        ("user:ann", QuotaEntity(user="ann")),
        ("user:ann,client", QuotaEntity(user="ann", client="")),
        ("client:a%2Cb", QuotaEntity(client="a,b")),
        ("client:a:b=c", QuotaEntity(client="a:b=c")),
        ("listener:mqtt_tls", QuotaEntity(listener="mqtt_tls")),
        ("ip:2001:db8::0001", QuotaEntity(ip="2001:db8::1")),
    ],
)
def test_an_entity_is_what_its_text_says(text: str, entity: QuotaEntity) -> None:
    assert parse_entity(text) == entity
    assert parse_entity(entity.text) == entity


@pytest.mark.parametrize(
    "text",
    ["", "ann", "user:", "user:a,user:b", "user:a,ip:1.2.3.4", "listener:mqtt,user", "ip:here",
     "group:x", "client:" + "x" * 513, "user:%ff"],
)  # fmt: skip
def test_what_names_nobody_is_refused(text: str) -> None:
    with pytest.raises(InvalidName):
        parse_entity(text)


@pytest.mark.parametrize(
    ("entity", "limits"),
    [
        ("user", {"connects": 1}),
        ("client", {"connects": 1}),
        ("listener", {"connects": 1}),
        ("ip", {"queues": 1}),
        ("ip", {"publish_bytes": 1}),
        ("user", {"speed": 1}),
        ("user", {"requests": 0}),
        ("user", {"requests": -1}),
        ("user", {"requests": float("nan")}),
        ("user", {"requests": float("inf")}),
        ("user", {"connections": 1.5}),
        ("user", {"publish_bytes": 2.0**54}),
    ],
)
def test_a_limit_that_cannot_be_kept_is_refused(entity: str, limits: dict[str, float]) -> None:
    with pytest.raises(InvalidRequest):
        check_limits(check_entity(parse_entity(entity)), limits)
