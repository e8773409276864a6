"""Commands that a data directory takes, as requests of the admin API: for `--url`.

Rules: the answer has the form that the control socket gives. A command that the API does not have
is refused with where it works.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec

from onelog.base.errors import InvalidRequest, NotFound
from onelog.cli.client import PATIENT_S, AdminClient, path_of

Json = dict[str, Any]
Call = Callable[[AdminClient, Json], Json]


def translate(client: AdminClient, message: bytes) -> bytes:
    """Ask for what a message says; the answer as a message."""
    asked: Json = msgspec.json.decode(message)
    kind = asked.pop("type")
    call = _CALLS.get(kind)
    if call is None:
        words = f"onelog {kind.replace('.', ' ')}"
        raise InvalidRequest(
            f"`{words}` works only on the machine of the server: run it there, without --url"
        )
    return msgspec.json.encode(call(client, asked))


def _rows(client: AdminClient, path: str) -> list[Json]:
    return [row for page in client.pages(path, {}) for row in page["items"]]


def _add_user(client: AdminClient, asked: Json) -> Json:
    role = "admin" if asked.pop("administrator", False) else "none"
    client.call("POST", "/users", body={**asked, "role": role})
    return {}


def _change_user(**fields: Callable[[Json], Any]) -> Call:
    def call(client: AdminClient, asked: Json) -> Json:
        body = {field: make(asked) for field, make in fields.items()}
        client.call("PATCH", path_of("/users/{user}", {"user": asked["name"]}), body=body)
        return {}

    return call


def _delete(path: str, field: str) -> Call:
    def call(client: AdminClient, asked: Json) -> Json:
        client.call("DELETE", path_of(path, {"name": asked[field]}))
        return {}

    return call


def _create_token(client: AdminClient, asked: Json) -> Json:
    made = client.call("POST", "/tokens", body=asked)
    return {"tokens": [made["info"]], "text": made["token"]}


def _create_view(client: AdminClient, asked: Json) -> Json:
    return {"views": [client.call("POST", "/views", body=asked)]}


def _create_stream(client: AdminClient, asked: Json) -> Json:
    chosen = asked.pop("chosen", {})
    found = client.call("POST", "/streams", body={**asked, **chosen})
    return {"streams": [_stream(found["stream"])]}


def _alter_stream(client: AdminClient, asked: Json) -> Json:
    chosen = asked.pop("chosen", {})
    path = path_of("/streams/{name}", {"name": asked.pop("name")})
    found = client.call("PATCH", path, body={**asked, **chosen})
    return {"streams": [_stream(found["stream"])]}


def _show_stream(client: AdminClient, asked: Json) -> Json:
    path = path_of("/streams/{name}", asked)
    found = client.get(path)
    page = client.get(f"{path}/partitions", {"limit": 100})
    return {
        "streams": [_stream(found["stream"])],
        "detail": {"settings": found["settings"], "partitions": page["items"]},
    }


def _stream(row: Json) -> Json:
    fields = ("name", "captures", "partitions", "records", "size_bytes")
    return {field: row[field] for field in fields}


def _rule(row: Json) -> Json:
    """A rule as the store keeps it."""
    target, _, pattern = row["resource"].partition(":")
    kept = {field: row[field] for field in ("id", "effect", "who", "actions", "note")}
    return {**kept, "target": target, "pattern": pattern}


def _list_rules(client: AdminClient, _asked: Json) -> Json:
    rules = [_rule(row) for row in _rows(client, "/access/rules")]
    return {"rules": rules, "unreadable": client.get("/access")["unreadable"]}


def _add_rule(client: AdminClient, asked: Json) -> Json:
    body = {**asked, "actions": asked["actions"].split(","), "id": asked.get("name", "")}
    body.pop("name", None)
    return {"rules": [_rule(client.call("POST", "/access/rules", body=body))]}


def _remove_rules(client: AdminClient, asked: Json) -> Json:
    paths = [path_of("/access/rules/{rule}", {"rule": name}) for name in asked["names"]]
    unreadable = client.get("/access")["unreadable"]
    for name, path in zip(asked["names"], paths, strict=True):
        if name not in unreadable:
            client.get(path)  # all of them or none: a name that is wrong ends it here
    for path in paths:
        client.call("DELETE", path, {"may_open": True})
    return {}


def _test_rules(client: AdminClient, asked: Json) -> Json:
    found = client.call("POST", "/access/test", body=asked)
    rule = None if found["rule"] is None else _rule(found["rule"])
    return {
        "verdict": {"allowed": found["allowed"], "rule": rule},
        "unreadable": client.get("/access")["unreadable"],
    }


def _set_quota(client: AdminClient, asked: Json) -> Json:
    path = path_of("/quotas/{name}", {"name": asked["entity"]})
    try:
        limits = client.get(path)["limits"]
    except NotFound:
        limits = {}
    for name in asked["drop"]:
        limits.pop(name, None)
    limits |= asked["limits"]
    if limits:
        return {"quotas": [client.call("PUT", path, body=limits)]}
    client.call("DELETE", path)
    return {}


def _list_audit(client: AdminClient, asked: Json) -> Json:
    query = {name: value for name, value in asked.pop("choice").items() if value not in (None, "")}
    query["limit"] = min(asked["limit"], _AUDIT_MAX)
    if asked["before"] >= 0:
        query["before"] = asked["before"]
    if asked["start"] is not None:
        query |= {"start": asked["start"], "wait_ms": asked["wait_ms"]}
    found = client.get("/audit", query)
    return {"page": {"rows": found["items"], "next": found["next_offset"]}}


def _show_backups(client: AdminClient, asked: Json) -> Json:
    if asked["id"]:
        return {"runs": [client.get(path_of("/backups/{name}", {"name": asked["id"]}))]}
    return {"runs": client.get("/backups")["items"]}


def _cancel_backup(client: AdminClient, asked: Json) -> Json:
    path = path_of("/backups/{name}", {"name": asked["id"]})
    return {"runs": [client.call("DELETE", path)]}


def ask_store(client: AdminClient, asked: Json) -> Json:
    """Look from there into a store of backups; hashing all of it takes as long as it takes."""
    verb = asked.pop("type")
    client.answer_s = PATIENT_S
    path = path_of("/stored-backups/{url}/", {"url": asked.pop("url")}) + verb
    found: Json = client.call("POST", path, body=asked)
    return found


_AUDIT_MAX: Final = 500
"""Records of an answer of the API, at most."""
_CALLS: Final[dict[str, Call]] = {
    "user.list": lambda client, _asked: {"users": _rows(client, "/users")},
    "user.add": _add_user,
    "user.passwd": _change_user(password=lambda asked: asked["password"]),
    "user.disable": _change_user(disabled=lambda asked: asked["disabled"]),
    "user.role": _change_user(role=lambda asked: asked["role"]),
    "user.administrator": _change_user(
        role=lambda asked: "admin" if asked["administrator"] else "none"
    ),
    "user.remove": _delete("/users/{name}", "name"),
    "user.groups": _change_user(groups=lambda asked: asked["groups"]),
    "acl.list": _list_rules,
    "acl.add": _add_rule,
    "acl.remove": _remove_rules,
    "acl.test": _test_rules,
    "quota.list": lambda client, _asked: {"quotas": _rows(client, "/quotas")},
    "quota.set": _set_quota,
    "quota.remove": _delete("/quotas/{name}", "entity"),
    "ban.list": lambda client, _asked: {"bans": _rows(client, "/bans")},
    "ban.lift": _delete("/bans/{name}", "address"),
    "token.list": lambda client, _asked: {"tokens": _rows(client, "/tokens")},
    "token.create": _create_token,
    "token.revoke": _delete("/tokens/{name}", "id"),
    "audit.list": _list_audit,
    "backup.start": lambda client, asked: {"runs": [client.call("POST", "/backups", body=asked)]},
    "backup.show": _show_backups,
    "backup.cancel": _cancel_backup,
    "view.list": lambda client, _asked: {"views": _rows(client, "/views")},
    "view.create": _create_view,
    "view.delete": _delete("/views/{name}", "name"),
    "stream.create": _create_stream,
    "stream.alter": _alter_stream,
    "stream.show": _show_stream,
    "stream.delete": _delete("/streams/{name}", "name"),
}
