"""The identity of a peer, and the names that a user may have.

Rules: an identity is made only by the `Authenticator`. A user has the name that SCRAM looks up: a
name that SASLprep would change, or that holds control characters, is refused when the user is
added. Names in tokens and certificates hold no control characters either: logs and rules show them.
"""

from __future__ import annotations

import unicodedata
from typing import Final, Literal, TypeGuard

import msgspec

from onelog.base.errors import InvalidName
from onelog.security.principals import Principal
from onelog.security.roles import AdminRole

NAME_BYTES_MAX: Final = 256
"""UTF-8 bytes of a user's name."""

ANONYMOUS_NAME: Final = "anonymous"

RESERVED_NAMES: Final = frozenset({ANONYMOUS_NAME, "local"})
"""Names of principals other than users: anonymous peers, and the program itself."""

Proof = Literal["password", "scram", "certificate", "token", "anonymous"]


def is_name(text: object) -> TypeGuard[str]:
    """Whether a peer may have this name, which an issuer or a certificate gives it."""
    if not isinstance(text, str) or not text or text in RESERVED_NAMES:
        return False
    return not any(unicodedata.category(char) in ("Cc", "Cs") for char in text)


class Identity(msgspec.Struct, frozen=True):
    """The name of a peer, and how the peer proved it."""

    name: str
    proof: Proof
    revision: int = 0
    """Revision of the user's record at that time; 0 when no record stands behind the name."""
    expires_ms: int = 0
    """When the token of this login expires, on the wall clock; 0: never."""
    claims: tuple[str, ...] = ()
    """What the token says of its owner, as `name=value`, where `security.tokens.claims` asks; and
    the groups that it names, as `~group=name`."""
    role: AdminRole = AdminRole.NONE
    """What the token's claims allow over the admin API."""

    def principal(self, protocol: str, client_id: str = "") -> Principal:
        """The principal of this peer's requests."""
        return Principal(self.name, protocol, client_id, self.proof == "certificate", self.claims)


ANONYMOUS: Final = Identity(ANONYMOUS_NAME, "anonymous")


def check_user_name(name: str, prepared: str) -> None:
    """Refuse a name that no user may have; `prepared` is what SASLprep makes of it."""
    if not name:
        raise InvalidName("a user's name has at least one character")
    size = len(name.encode("utf-8", "surrogatepass"))
    if size > NAME_BYTES_MAX:
        raise InvalidName(f"a user's name has at most {NAME_BYTES_MAX} bytes, this one {size}")
    if name in RESERVED_NAMES:
        raise InvalidName(f"the name {name!r} is reserved; choose another one")
    if prepared != name or name != name.strip():
        raise InvalidName(
            f"the user's name {name!r} has white space around it or characters that SASLprep "
            f"changes (it would become {prepared.strip()!r}); choose another one"
        )
