"""DescribeUserScramCredentials and AlterUserScramCredentials: users by Kafka's tools.

Rules:
- An anonymous client sees and changes no user. Administrators see and change every user; any other
  user sees and changes only itself, as in the management API, and only after a login by a password
  of this broker or SCRAM: a certificate or token that ends would else make a login that lasts.
- The client derives the key, so no password arrives: a user that is made here logs in by SCRAM
  only, and a user that has a password keeps it. All changes to one user are one write.
- A user without a password is deleted with its last credential.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from onelog.base.errors import InvalidName, InvalidRequest, NotFound, OnelogError
from onelog.protocols.kafka.codec import Body
from onelog.protocols.kafka.errors import ErrorCode, KafkaError, code_of
from onelog.protocols.kafka.request import Request
from onelog.protocols.kafka.turns import RequestTurns
from onelog.security.identity import ANONYMOUS
from onelog.security.scram import SCRAM_SHA_256, SCRAM_SHA_512, ScramCredential, derived_credential

if TYPE_CHECKING:
    from onelog.protocols.kafka.hub import Hub

_MECHANISMS: Final = {1: SCRAM_SHA_256, 2: SCRAM_SHA_512}
"""As the protocol numbers them."""
_NUMBERS: Final = {name: number for number, name in _MECHANISMS.items()}
_LASTING: Final = ("password", "scram")
"""What a user who changes itself proves itself by."""
ITERATIONS: Final = range(4096, 16_384 + 1)
_SALT_BYTES_MAX: Final = 1024


def _check_asker(hub: Hub, request: Request, names: Iterable[str]) -> None:
    """Check that the client may see or change these users; no names: all of them."""
    identity = request.connection.identity
    if identity is None or identity == ANONYMOUS:
        raise KafkaError(
            ErrorCode.cluster_authorization_failed, "users are seen and changed after a login only"
        )
    is_known_here = identity.proof in _LASTING and hub.authenticator.knows(identity.name)
    if is_known_here and set(names) == {identity.name}:
        return
    if not hub.authenticator.is_administrator(identity.name):
        raise KafkaError(
            ErrorCode.cluster_authorization_failed,
            "only an administrator sees and changes other users"
            " (`onelog user promote NAME` makes one)",
        )


# -- describing


async def describe_user_scram_credentials(hub: Hub, request: Request) -> Body:
    """The mechanisms of users; the keys are not shown."""
    asked = request.body.users
    _check_asker(hub, request, {row.name for row in asked or ()})
    known = await hub.authenticator.users.scram_iterations()
    times = Counter(row.name for row in asked or ())
    names = list(times) if asked else [name for name, found in known.items() if found]
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "results": [
            _described(name, known.get(name), times[name])
            async for name in RequestTurns().timed(names)
        ],
    }


def _described(name: str, found: dict[str, int] | None, times: int) -> Body:
    body: Body = {"user": name, "error_code": ErrorCode.none, "error_message": None}
    if times > 1:
        return body | {
            "error_code": ErrorCode.duplicate_resource,
            "error_message": f"the request names {name[:100]!r} more than once",
        }
    if not found:
        return body | {
            "error_code": ErrorCode.resource_not_found,
            "error_message": f"there is no user {name[:100]!r} with SCRAM credentials",
        }
    infos = [
        {"mechanism": _NUMBERS[mechanism], "iterations": iterations}
        for mechanism, iterations in sorted(found.items())
    ]
    return body | {"credential_infos": infos}


# -- altering


async def alter_user_scram_credentials(hub: Hub, request: Request) -> Body:
    """Set or remove credentials."""
    body = request.body
    asked: dict[str, tuple[list[Any], list[Any]]] = {}
    for at, rows in enumerate((body.deletions, body.upsertions)):
        for row in rows:
            asked.setdefault(row.name, ([], []))[at].append(row)
    results = []
    async for name, (deletions, upsertions) in RequestTurns().over(asked.items()):
        result: Body = {"user": name, "error_code": ErrorCode.none, "error_message": None}
        try:
            _check_asker(hub, request, (name,))
            times = Counter(row.mechanism for row in (*deletions, *upsertions))
            if any(count > 1 for count in times.values()):
                raise KafkaError(
                    ErrorCode.duplicate_resource, f"a mechanism of {name[:100]!r} is named twice"
                )
            gone = [_mechanism(row) for row in deletions]
            new = {_mechanism(row): row for row in upsertions}
            await _change(hub, request, name, new, gone)
        except OnelogError as error:
            result |= {"error_code": _code(error), "error_message": str(error)}
        results.append(result)
    return {"results": results}


async def _change(
    hub: Hub, request: Request, name: str, new: dict[str, Any], gone: Iterable[str]
) -> None:
    made = {mechanism: _credential(mechanism, row) for mechanism, row in new.items()}
    connection = request.connection
    is_own = connection.identity is not None and connection.identity.name == name
    # A user that changes itself loses its login: the answer goes out first.
    connection.ends_after_answer = connection.ends_after_answer or is_own
    try:
        await hub.authenticator.users.change_scram(name, made, gone)
    except OnelogError:
        if is_own:
            connection.ends_after_answer = False
        raise


def _mechanism(row: Any) -> str:
    found = _MECHANISMS.get(row.mechanism)
    if found is None:
        raise KafkaError(
            ErrorCode.unsupported_sasl_mechanism, f"there is no mechanism {row.mechanism}"
        )
    return found


def _credential(mechanism: str, row: Any) -> ScramCredential:
    if row.iterations not in ITERATIONS:
        raise KafkaError(
            ErrorCode.unacceptable_credential,
            f"iterations are {ITERATIONS.start} to {ITERATIONS.stop - 1}, not {row.iterations}",
        )
    if not 0 < len(row.salt) <= _SALT_BYTES_MAX:
        raise KafkaError(
            ErrorCode.unacceptable_credential, f"a salt has 1 to {_SALT_BYTES_MAX} bytes"
        )
    return derived_credential(mechanism, row.salt, row.iterations, row.salted_password)


def _code(error: OnelogError) -> ErrorCode:
    if isinstance(error, NotFound):
        return ErrorCode.resource_not_found
    if isinstance(error, (InvalidName, InvalidRequest)):
        return ErrorCode.unacceptable_credential
    return code_of(error)
