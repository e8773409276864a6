"""The one place where every protocol finds out who a peer is.

Rules: a check needs no I/O, because users are in memory; a changed user applies at once. Only
`password` may take time (a hash in a thread); try `recall` first, which answers at once. By
default, anonymous peers may connect from this machine only.
"""

from __future__ import annotations

import functools
import ipaddress
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from onelog.base.clock import Clock
from onelog.base.errors import NotAuthenticated
from onelog.metadata.once import written_once
from onelog.metadata.store import MetadataStore
from onelog.observe import Sample, Troubles
from onelog.security.bans import Bans, BanSettings
from onelog.security.hashing import HashThreads
from onelog.security.identity import ANONYMOUS, Identity, is_name
from onelog.security.issuer import Discovered
from onelog.security.passwords import Passwords, PasswordSettings
from onelog.security.roles import AdminRole
from onelog.security.scram import MECHANISMS, Account, Mechanism, ScramExchange
from onelog.security.table import UserTable
from onelog.security.tokens import Tokens, TokenSettings
from onelog.security.users import Users

_SALT_SEED_KEY: Final = "security/salt_seed"
_SALT_SEED_BYTES: Final = 32


class SecuritySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an operator."""

    anonymous: Literal["loopback", "always", "never"] = "loopback"
    """Which peers may connect without a name: those of this machine, all or none."""
    certificate_users_only: bool = False
    """Whether the name in a client certificate must be a user, or any name that its CA signed."""
    passwords: PasswordSettings = PasswordSettings()
    tokens: TokenSettings = TokenSettings()
    bans: BanSettings = BanSettings()


class Authenticator:
    """Finds out who a peer is. Make one with `Authenticator.open`."""

    def __init__(
        self,
        store: MetadataStore,
        clock: Clock,
        settings: SecuritySettings,
        troubles: Troubles | None = None,
    ) -> None:
        self._troubles = troubles or Troubles(clock)
        self._settings = settings
        self._threads = HashThreads()
        self._table = UserTable(store, self._troubles)
        self._table.on_change = self._changed
        self._tokens = Tokens(settings.tokens, clock, self._troubles)
        self._clock = clock
        self._passwords = Passwords(self._table, self._threads, clock, settings.passwords)
        self.users = Users(store, self._threads, clock, self._table.rows)
        """The commands that change users; a change applies here when they return."""
        self.bans = Bans(settings.bans, clock)
        """The addresses whose logins fail. Every listener lets a peer prove itself through
        `bans.guard`."""
        self._listeners: list[Callable[[str], None]] = []
        self._salt_seed = b""

    @classmethod
    async def open(
        cls,
        store: MetadataStore,
        clock: Clock,
        settings: SecuritySettings | None = None,
        troubles: Troubles | None = None,
    ) -> Authenticator:
        """Load the users of a store and follow their changes."""
        made = cls(store, clock, settings or SecuritySettings(), troubles)
        try:
            made._salt_seed = await _load_salt_seed(store)
            await made._table.open()
            await made._tokens.open()
        except BaseException:
            await made.close()
            raise
        return made

    async def close(self) -> None:
        """End the watch and the threads; the store stays open. Idempotent."""
        await self._tokens.close()
        await self._table.close()
        await self._threads.close()

    # ---- who is it ----

    def anonymous(self, *, listener_is_loopback: bool, peer_host: str | None) -> Identity:
        """A peer that gives no name. Raises NotAuthenticated where that is not allowed."""
        allowed = self._settings.anonymous
        local = listener_is_loopback and peer_host is not None and _is_loopback(peer_host)
        if allowed == "always" or (allowed == "loopback" and local):
            return ANONYMOUS
        raise NotAuthenticated("this listener needs a user name and a password")

    def recall(self, name: str, password: bytes) -> Identity | None:
        """The identity, if the same password was right a while ago; None: call `password`.

        Ask `bans` first: else an address that is banned goes on guessing, and finds the password.
        """
        return self._passwords.recall(name, password)

    async def password(self, name: str, password: bytes) -> Identity:
        """The identity of a user. Raises NotAuthenticated, or Unavailable when too many logins
        wait."""
        return await self._passwords.verify(name, password)

    @property
    def scram_mechanisms(self) -> tuple[Mechanism, ...]:
        """The SCRAM mechanisms that `scram` takes."""
        return MECHANISMS

    def scram(self, mechanism: str) -> ScramExchange:
        """Begin a SCRAM login. Raises NotAuthenticated for a mechanism that is not known."""
        for known in MECHANISMS:
            if known == mechanism:
                return ScramExchange(known, self._find, self._salt_seed)
        raise NotAuthenticated(
            f"the mechanism {mechanism[:64]!r} is unknown; use {' or '.join(MECHANISMS)}"
        )

    @property
    def takes_tokens(self) -> bool:
        """Whether logins by `token` are possible."""
        return self._tokens.enabled

    async def token(self, token: str) -> Identity:
        """The owner of a signed token. Raises NotAuthenticated, also for a disabled user.

        The issuer is asked for a key that is not known yet, if it was not asked lately.
        """
        await self.renew_keys_for(token)
        return self.token_now(token)

    async def renew_keys_for(self, token: str) -> None:
        """Ask the issuer for the key of a token, if it is not known and may be new."""
        await self._tokens.renew_keys_for(token)

    def token_now(self, token: str) -> Identity:
        """As `token`, with the keys that are known."""
        return self._enabled(self._tokens.identify(token))

    def id_token(self, token: str, client_id: str) -> tuple[Identity, dict[str, Any]]:
        """The owner of an id token that was made for a client, and its claims.

        Raises NotAuthenticated.
        """
        claims = self._tokens.verified(token, client_id)
        return self._enabled(self._tokens.identity_of(claims)), claims

    @property
    def issuer_document(self) -> Discovered | None:
        """What the identity provider says of itself, once it is known."""
        return self._tokens.issuer.document

    async def ask_issuer(self, work: Callable[[], bytes]) -> bytes:
        """Run blocking work with the identity provider in its thread. Raises FetchError."""
        return await self._tokens.issuer.in_thread(work)

    def _enabled(self, identity: Identity) -> Identity:
        known = self._table.get(identity.name)
        if known is not None and known.user.disabled:
            raise NotAuthenticated(f"the user {identity.name!r} is disabled")
        return identity

    def certificate(self, certificate: Mapping[str, Any] | None) -> Identity:
        """The owner of a verified client certificate, as `ssl` shows it: its common name.

        Raises NotAuthenticated without a certificate or name, and for a disabled user.
        """
        names = [
            value
            for group in (certificate or {}).get("subject", ())
            for key, value in group
            if key == "commonName"
        ]
        if len(names) != 1 or not is_name(names[0]):
            raise NotAuthenticated(
                "this listener needs a client certificate with exactly one common name"
            )
        name = names[0]
        known = self._table.get(name)
        if known is None and not self._settings.certificate_users_only:
            return Identity(name, "certificate")
        if known is None or known.user.disabled:
            raise NotAuthenticated(
                f"the certificate's common name {name!r} is not the name of an enabled user"
            )
        return Identity(name, "certificate", known.revision)

    def is_current(self, identity: Identity) -> bool:
        """Whether a peer that logged in before would still be let in, without asking it again."""
        known = self._table.get(identity.name)
        if identity.proof == "anonymous":
            return True
        if identity.proof == "token":
            enabled = known is None or not known.user.disabled
            return enabled and self._clock.now_ms() < identity.expires_ms
        if identity.proof == "certificate":
            return (
                not self._settings.certificate_users_only
                if known is None
                else not (known.user.disabled)
            )
        return known is not None and known.revision == identity.revision

    def knows(self, name: str) -> bool:
        """Whether there is a user of this name."""
        return self._table.get(name) is not None

    @property
    def has_users(self) -> bool:
        """Whether there is any user, even one whose record cannot be read."""
        return not self._table.is_empty

    def role_of(self, name: str, since_ms: int | None = None) -> AdminRole:
        """What a user may do over the admin API; nothing when it is disabled or not known.

        Nothing, too, when it was not there yet at `since_ms`: then it is another one of that name.
        """
        found = self._table.get(name)
        if found is None or found.user.disabled:
            return AdminRole.NONE
        if since_ms is not None and found.user.created_ms > since_ms:
            return AdminRole.NONE
        return found.user.admin_role

    def is_administrator(self, name: str) -> bool:
        """Whether an identity may change other users.

        An anonymous peer may make the first user, as `guest` may in RabbitMQ, if such peers may
        connect (`security.anonymous`) and no identity provider says who comes. As soon as there is
        a user, even one whose record cannot be read, only administrators change users.
        """
        found = self._table.get(name)
        if found is None:
            is_unclaimed = self._table.is_empty and not self.takes_tokens
            return name == ANONYMOUS.name and is_unclaimed
        return found.user.administrator

    def groups_of(self, name: str) -> tuple[str, ...]:
        """The groups of a user, also of one whose login a token or certificate proves."""
        return self._table.groups_of(name)

    def on_change(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call `listener` with the name of each user that changes, to look at its connections.

        Call the function that this returns to end that.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def samples(self) -> tuple[Sample, ...]:
        """Numbers for the metrics."""
        checks = self._passwords
        return (
            *self.bans.samples(),
            Sample("onelog_users", "Users that exist.", "gauge", len(self._table)),
            Sample(
                "onelog_password_checks_total",
                "Password hashes computed.",
                "counter",
                checks.checks,
            ),
            Sample(
                "onelog_password_recalls_total",
                "Password checks answered from memory.",
                "counter",
                checks.recalls,
            ),
            Sample(
                "onelog_password_refusals_total",
                "Password checks refused because too many waited.",
                "counter",
                checks.refusals,
            ),
        )

    def _find(self, name: str, mechanism: Mechanism) -> Account | None:
        known = self._table.get(name)
        if known is None or known.user.disabled:
            return None
        credential = known.user.scram.get(mechanism)
        return None if credential is None else Account(name, known.revision, credential)

    def _changed(self, name: str) -> None:
        # If one protocol raises, the others still end this user's connections.
        self._troubles.tell("user-listener", self._listeners, name)


async def _load_salt_seed(store: MetadataStore) -> bytes:
    """The seed of made-up salts. It is kept, because a salt that changes is known to be made up."""
    return await written_once(store, _SALT_SEED_KEY, secrets.token_bytes(_SALT_SEED_BYTES))


@functools.lru_cache(maxsize=256)
def _is_loopback(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
