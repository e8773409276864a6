"""Schemathesis over the whole admin API: whatever a client sends, the answer is as declared."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2 as httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from onelog.admin.api import share
from onelog.admin.api.logins import LoginSessions
from onelog.admin.api.openapi import openapi_document
from onelog.admin.api.table import operations
from onelog.base.clock import ManualClock
from tests.support.admin import new_desk
from tests.support.served import Served

EXAMPLES = 2
"""Requests per operation."""


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(share, "SHARE", 0.9)  # nothing else runs on this server
        with Served(tmp_path_factory.mktemp("data")) as found:
            asked = {"label": "test", "role": "admin"}
            found.token = httpx.post(f"{found.url}/api/v1/tokens", json=asked).json()["token"]
            yield found


def document() -> dict:
    clock = ManualClock()
    rows = operations(new_desk(), LoginSessions(clock), clock)
    return openapi_document("1", rows, [])  # events are left out: they never end


schema = schemathesis.openapi.from_dict(document())
HASHED = ["/api/v1/users", "/api/v1/users/{user}", "/api/v1/login"]
"""Each good request there is a password to hash: they get examples, and not every edge of them."""


def configured(*phases: Phase) -> settings:
    return settings(
        max_examples=EXAMPLES,
        phases=phases,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
    )


def check(case, served: Served) -> None:
    case.call_and_validate(
        base_url=served.url,
        headers={"Authorization": f"Bearer {served.token}"},
        checks=[
            not_a_server_error,
            status_code_conformance,
            content_type_conformance,
            response_schema_conformance,
            negative_data_rejection,
        ],
    )


@schema.exclude(path=HASHED).parametrize()
@configured(Phase.explicit, Phase.generate)
def test_every_answer_is_as_the_document_says(case, served):
    check(case, served)


@schema.include(path=HASHED).parametrize()
@configured(Phase.generate)
def test_answers_that_hash_a_password_are_as_the_document_says(case, served):
    check(case, served)
