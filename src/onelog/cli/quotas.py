"""`onelog quota …` and `onelog ban …`: how much clients may do, and which addresses are kept out.

Rules: quotas are changed in a running server or in the data directory of a stopped one. Bans are in
the memory of a running server. Modules that only these commands need are imported when one of them
runs, so that other commands start faster.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cyclopts import App
from msgspec import to_builtins

from onelog.base.errors import InvalidRequest
from onelog.cli.api.showing import WHOLE, ListShown, Rows, show_list
from onelog.cli.api.table import NOUNS
from onelog.cli.reaching import RunOffline, reach
from onelog.cli.render import say
from onelog.cli.tables import columns
from onelog.cli.users import DEFAULT_DATA, DataOptions

if TYPE_CHECKING:
    from onelog.cli.api.showing import Json
    from onelog.security.ban_commands import BanAnswer, BanCommand
    from onelog.security.quotas.commands import QuotaAnswer, QuotaCommand

_QUOTA_COLUMNS: Final = columns("entity limits")
_BAN_COLUMNS: Final = columns("address since_ms until_ms")


def build_quotas(run_offline: RunOffline | None) -> App:
    """The commands of `onelog quota`."""
    app = App(name="quota", help=NOUNS["quota"])

    def perform(options: DataOptions, command: QuotaCommand) -> tuple[QuotaAnswer, str]:
        import msgspec  # noqa: PLC0415

        from onelog.security.quotas.commands import SetQuota, decode_quota_answer  # noqa: PLC0415

        assert run_offline is not None, "the command line was built without a store"
        makes_data = isinstance(command, SetQuota)
        message = msgspec.json.encode(command)
        answer, where = reach(run_offline, options, message, makes_data=makes_data)
        return decode_quota_answer(answer), where

    @app.command(name="set")
    def set_command(
        entity: str, limit: str, /, *more: str, options: DataOptions = DEFAULT_DATA
    ) -> None:
        """Set limits, as in: onelog quota set user:alice publish_bytes=1MB connections=10.

        They apply at once, to open connections too. Other limits of the entity stay.

        Parameters
        ----------
        entity
            user:NAME, client:ID, both as user:NAME,client:ID, listener:NAME or ip:ADDRESS. The bare
            word (user, client, listener, ip) means each one that has no quota of its own.
        limit
            NAME=VALUE. Per second: publish_bytes, publish_messages, fetch_bytes, requests, and of
            addresses connects. At once: connections, subscriptions, queues. "NAME=unlimited" drops
            a limit.
        """
        from onelog.security.quotas.commands import SetQuota  # noqa: PLC0415

        limits, drop = _limits((limit, *more))
        answer, where = perform(options, SetQuota(entity=entity, limits=limits, drop=drop))
        if answer.quotas:
            say(f"the quota of {entity} {where}: {_limits_text(answer.quotas[0].limits)}")
        else:
            say(f"{entity} has no quota {where} now")

    @app.command
    def remove(entity: str, /, *, options: DataOptions = DEFAULT_DATA) -> None:
        """Remove a quota."""
        from onelog.security.quotas.commands import RemoveQuota  # noqa: PLC0415

        where = perform(options, RemoveQuota(entity=entity))[1]
        say(f"removed the quota of {entity} {where}")

    @app.command(name="list")
    def list_command(*, shown: ListShown = WHOLE, options: DataOptions = DEFAULT_DATA) -> None:
        """List the quotas."""
        from onelog.security.quotas.commands import ListQuotas  # noqa: PLC0415

        def fetch() -> Rows:
            answer, _where = perform(options, ListQuotas())
            wrong = [{"entity": name, "limits": {}} for name in answer.unreadable]
            yield [*to_builtins(answer.quotas), *wrong]

        none = "there are no quotas; `onelog quota set` sets one"
        show_list(fetch, _QUOTA_COLUMNS, shown, none, _quota_words)

    return app


def build_bans(run_offline: RunOffline | None) -> App:
    """The commands of `onelog ban`."""
    app = App(name="ban", help=NOUNS["ban"])

    def perform(options: DataOptions, command: BanCommand) -> BanAnswer:
        import msgspec  # noqa: PLC0415

        from onelog.security.ban_commands import decode_ban_answer  # noqa: PLC0415

        assert run_offline is not None, "the command line was built without a store"
        answer, _where = reach(run_offline, options, msgspec.json.encode(command))
        return decode_ban_answer(answer)

    @app.command(name="list")
    def list_command(*, shown: ListShown = WHOLE, options: DataOptions = DEFAULT_DATA) -> None:
        """List the addresses that may not connect."""
        from onelog.security.ban_commands import ListBans  # noqa: PLC0415

        def fetch() -> Rows:
            yield to_builtins(perform(options, ListBans()).bans)

        show_list(fetch, _BAN_COLUMNS, shown, "no address is banned")

    @app.command
    def lift(address: str, /, *, options: DataOptions = DEFAULT_DATA) -> None:
        """Let an address connect again, at once."""
        from onelog.security.ban_commands import LiftBan  # noqa: PLC0415

        perform(options, LiftBan(address=address))
        say(f"{address} may connect again")

    return app


def _limits(words: tuple[str, ...]) -> tuple[dict[str, float], tuple[str, ...]]:
    """The limits to set, and those to drop. Raises InvalidRequest."""
    from onelog.config.units import UNLIMITED, parse_quantity  # noqa: PLC0415

    limits: dict[str, float] = {}
    drop = []
    for word in words:
        name, found, text = word.partition("=")
        if not found:
            raise InvalidRequest(f"{word!r}: write a limit as NAME=VALUE, such as requests=100")
        try:
            if text.strip().lower() == "unlimited" or name.endswith("_bytes"):
                value: float = parse_quantity(text, "bytes")
            else:
                value = float(text)
        except ValueError as error:
            raise InvalidRequest(f"{word!r}: {error}") from None
        if value == UNLIMITED:
            drop.append(name)
        else:
            limits[name] = value
    return limits, tuple(drop)


def _quota_words(row: Json) -> Json:
    wrong = "cannot be read, and bounds nobody: remove it"
    return {**row, "limits": _limits_text(row["limits"]) or wrong}


def _limits_text(limits: dict[str, float]) -> str:
    return ", ".join(f"{name}={_value(name, value)}" for name, value in limits.items())


def _value(name: str, value: float) -> str:
    from onelog.config.units import format_quantity  # noqa: PLC0415

    if value != int(value):
        return str(value)
    return format_quantity(int(value), "bytes") if name.endswith("_bytes") else str(int(value))
