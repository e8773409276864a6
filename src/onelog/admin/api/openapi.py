"""The OpenAPI document, made from the table of operations: nothing in it is written twice."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from onelog.admin.api.declaring import NOTHING, PREFIX, AnyEvents, AnyOperation
from onelog.admin.contract import ErrorAnswer
from onelog.security.roles import AdminRole

_REFERENCE: Final = "#/components/schemas/{name}"
_PART: Final = re.compile(r"\{(\w+)\}")
_FAILURES: Final = {
    "400": "The request can never succeed as it is.",
    "401": "Nobody logged in, or the login is over.",
    "403": "The caller's role is not enough, or the request comes from a page of another site.",
    "404": "There is no such thing.",
    "409": "It exists already, or its state does not allow this.",
    "413": "It is larger than a limit allows.",
    "421": "Another node of the cluster has this: the message says which.",
    "429": "A quota refuses this for now.",
    "500": "A fault of the server; its log says why.",
    "503": "The broker is starting or stopping, or a part that this needs is not served.",
    "504": "It is not known whether it was done.",
    "507": "The disk is full.",
}
_SECURITY: Final[list[dict[str, list[str]]]] = [{"bearer": []}, {"session": [], "csrf": []}, {}]

Json = dict[str, Any]


def openapi_document(
    version: str, operations: Iterable[AnyOperation], events: Iterable[AnyEvents]
) -> Json:
    """The document."""
    operations, events = list(operations), list(events)
    kinds = _kinds(operations)
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    by_kind = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, Json] = {}
    for row in operations:
        paths.setdefault(PREFIX + row.path, {})[row.method.lower()] = _operation(row, by_kind)
    for stream in events:
        paths.setdefault(PREFIX + stream.path, {})["get"] = _events(stream)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "OneLog admin API",
            "version": version,
            "description": "Everything that the broker shows to operators, and what they change.",
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "onelog_session"},
                "csrf": {"type": "apiKey", "in": "header", "name": "X-CSRF-Token"},
            },
        },
        "security": _SECURITY,
    }


def _kinds(operations: list[AnyOperation]) -> list[Any]:
    found: dict[Any, None] = {ErrorAnswer: None}
    for row in operations:
        for kind in (row.body, row.answer):
            if kind is not NOTHING:
                found[kind] = None
    return list(found)


def _operation(row: AnyOperation, schemas: dict[Any, Json]) -> Json:
    made: Json = {
        "operationId": operation_id(row),
        **_about(row),
        "parameters": [*_path_parameters(row.path), *_query_parameters(row.query)],
        "responses": _answers(row, schemas),
    }
    if row.body is not NOTHING:
        made["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schemas[row.body]}},
        }
    return made


def _about(row: AnyOperation | AnyEvents) -> Json:
    role = (
        "everybody, also before a login" if row.role is AdminRole.NONE else f"the role {row.role}"
    )
    return {"tags": [row.tag], "summary": row.summary, "description": f"Needs: {role}."}


def _answers(row: AnyOperation, schemas: dict[Any, Json]) -> Json:
    answers: Json = {str(row.status): {"description": row.summary}}
    if row.answer is not NOTHING:
        content = {"application/json": {"schema": schemas[row.answer]}}
        answers[str(row.status)]["content"] = content
    return answers | _failures()


def _failures() -> Json:
    schema = {"$ref": _REFERENCE.format(name="ErrorAnswer")}
    content = {"application/json": {"schema": schema}}
    return {status: {"description": text, "content": content} for status, text in _FAILURES.items()}


def _events(row: AnyEvents) -> Json:
    return {
        "operationId": _id("get", row.path),
        **_about(row),
        "parameters": [*_path_parameters(row.path), *_query_parameters(row.query)],
        "responses": {
            "200": {
                "description": row.summary,
                "content": {"text/event-stream": {"schema": {"type": "string"}}},
            }
        }
        | _failures(),
    }


def operation_id(row: AnyOperation) -> str:
    """A name that no other operation has."""
    return _id(row.method.lower(), row.path)


def _id(method: str, path: str) -> str:
    words = [part.strip("{}") for part in re.split(r"[/\-]", path) if part]
    return "_".join([method, *words])


def _path_parameters(path: str) -> list[Json]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "minLength": 1},
        }
        for name in _PART.findall(path)
    ]


def _query_parameters(kind: Any) -> list[Json]:
    schema = msgspec.json.schema(kind, ref_template="#/$defs/{name}")
    found = schema["$defs"][kind.__name__]
    rows = []
    for name, given in found["properties"].items():
        shape = dict(given)
        description = shape.pop("description", "")
        rows.append(
            {
                "name": name,
                "in": "query",
                "required": name in found.get("required", ()),
                "description": description,
                "schema": shape,
            }
        )
    return rows
