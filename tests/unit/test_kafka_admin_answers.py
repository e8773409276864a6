"""Answers that are written row by row: the same bytes as the general codec writes."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from onelog.config import Config
from onelog.config.streams import StreamDefaults
from onelog.protocols.kafka.admin.answers import answer, created_row, described_row, element
from onelog.protocols.kafka.admin.choosing import default_config
from onelog.protocols.kafka.admin.describing import config_rows
from onelog.protocols.kafka.apis import APIS, ApiKey
from onelog.protocols.kafka.codec import encode_response
from onelog.protocols.kafka.errors import ErrorCode
from tests.support.kafka_admin import desk

ROWS = config_rows(Config(), default_config(StreamDefaults(), "t", "t", 3), "a/+")
CREATE, DESCRIBE = APIS[ApiKey.CREATE_TOPICS], APIS[ApiKey.DESCRIBE_CONFIGS]


@pytest.mark.parametrize("version", range(DESCRIBE.first, DESCRIBE.last + 1))
@pytest.mark.parametrize("synonyms", [False, True])
@pytest.mark.parametrize("documentation", [False, True])
def test_settings_are_written_as_the_general_codec_would(
    version: int, synonyms: bool, documentation: bool
) -> None:
    good = {"error_code": ErrorCode.none, "resource_type": 2, "resource_name": "t"}
    bad = {"error_code": ErrorCode.invalid_request, "error_message": "no", "resource_name": "u"}
    rows = [
        described_row(version, row, synonyms=synonyms, documentation=documentation) for row in ROWS
    ]
    body = answer(
        DESCRIBE.key,
        version,
        [
            element(DESCRIBE.key, version, "results", good, rows),
            element(DESCRIBE.key, version, "results", bad, ()),
        ],
    )
    configs = [
        {
            "name": row.name,
            "value": row.value,
            "read_only": row.read_only,
            "config_source": int(row.source),
            "is_sensitive": False,
            "synonyms": [
                {"name": name, "value": value, "source": int(source)}
                for name, value, source in row.synonyms
            ]
            if synonyms
            else [],
            "config_type": int(row.type),
            "documentation": row.about if documentation else None,
        }
        for row in ROWS
    ]
    whole: dict[str, Any] = {"results": [good | {"configs": configs}, bad]}
    expected = encode_response(DESCRIBE, version, 1, whole)
    assert encode_response(DESCRIBE, version, 1, body) == expected


@pytest.mark.parametrize("version", range(CREATE.first, CREATE.last + 1))
def test_new_topics_are_written_as_the_general_codec_would(version: int) -> None:
    good = {"name": "t", "topic_id": uuid.UUID(int=5), "num_partitions": 3}
    bad = {"name": "u", "error_code": ErrorCode.invalid_config, "error_message": "no"}
    names = ("name", "value", "read_only")
    configs = [
        {name: getattr(row, name) for name in names} | {"config_source": int(row.source)}
        for row in ROWS
    ]
    rows = [created_row(version, row) for row in ROWS] if version >= 5 else []
    body = answer(
        CREATE.key,
        version,
        [
            element(CREATE.key, version, "topics", good, rows),
            element(CREATE.key, version, "topics", bad, ()),
        ],
    )
    whole: dict[str, Any] = {"topics": [good | {"configs": configs}, bad]}
    expected = encode_response(CREATE, version, 1, whole)
    assert encode_response(CREATE, version, 1, body) == expected


async def test_others_have_their_turn_while_many_topics_are_described(tmp_path: Path) -> None:
    async with desk(tmp_path) as admin:
        await admin.create("t", 1)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        resource = {"resource_type": 2, "resource_name": "t", "configuration_keys": None}
        told = await admin.ask(
            ApiKey.DESCRIBE_CONFIGS,
            resources=[resource] * 300,
            include_synonyms=True,
            include_documentation=True,
        )
        counting.cancel()
        assert len(told.results) == 300
        assert turns >= 300
