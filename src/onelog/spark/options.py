"""Options as Spark hands them over: read by name, checked, and those of the connection.

Rules: an unknown option is an error that names the nearest known one, so that a misspelt option
never means a default. The case of names does not matter, as in Spark. Where Spark's Kafka source
has a name for something, that name works here, too; its settings of the Java client that mean
nothing here are listed and passed over, so that code moves by changing `format(...)`.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from onelog.base.errors import ConfigError
from onelog.kafka_client import MECHANISMS, Access, parse_servers


class Option(NamedTuple):
    """An option: its name, other names for it, and what it means."""

    name: str
    means: str
    aliases: tuple[str, ...] = ()


CLIENT_ID: Final = "onelog-spark"
SERVERS: Final = "ONELOG_SERVERS"
"""The variable of the environment that says `servers` where no option does."""

CONNECTION: Final = (
    Option(
        "servers",
        f"host:port,… of the broker's Kafka listener; {SERVERS} of the environment unless told",
        ("kafka.bootstrap.servers",),
    ),
    Option("user", "who logs in; without it nobody does", ("kafka.sasl.username",)),
    Option("password", "", ("kafka.sasl.password",)),
    Option("sasl.mechanism", ", ".join(MECHANISMS), ("kafka.sasl.mechanism",)),
    Option("kafka.sasl.jaas.config", "Kafka's way to write user and password"),
    Option("tls", "true: the connection is encrypted"),
    Option(
        "kafka.security.protocol",
        "Kafka's way to say tls: PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL",
    ),
    Option(
        "tls.ca",
        "file of the authorities that are trusted (PEM); without it those of the system",
        ("kafka.ssl.truststore.location", "kafka.ssl.ca.location"),
    ),
    Option("tls.cert", "file of our own certificate (PEM)", ("kafka.ssl.keystore.location",)),
    Option("tls.key", "file of its key, if it is not in the same file"),
    Option("tls.keyPassword", "", ("kafka.ssl.key.password",)),
    Option("tls.checkHostname", "false: any name in the certificate will do"),
    Option("timeoutMs", "how long a broker that is away is looked for; 60000 unless told"),
)

PASSED_OVER: Final = (
    "kafka.ssl.truststore.type", "kafka.ssl.keystore.type", "kafka.client.id",
    "kafka.fetch.min.bytes", "kafka.fetch.max.bytes", "kafka.fetch.max.wait.ms",
    "kafka.max.partition.fetch.bytes", "kafka.max.poll.records", "kafka.max.poll.interval.ms",
    "kafka.request.timeout.ms", "kafka.session.timeout.ms", "kafka.heartbeat.interval.ms",
    "kafka.default.api.timeout.ms", "kafka.metadata.max.age.ms", "kafka.receive.buffer.bytes",
    "kafka.send.buffer.bytes", "kafka.reconnect.backoff.ms", "kafka.retry.backoff.ms",
    "kafka.connections.max.idle.ms", "kafka.partition.assignment.strategy",
    "kafka.enable.auto.commit", "kafka.allow.auto.create.topics", "kafka.acks", "kafka.retries",
    "kafka.linger.ms", "kafka.batch.size", "kafka.buffer.memory", "kafka.max.block.ms",
    "kafka.max.request.size", "kafka.delivery.timeout.ms", "kafka.enable.idempotence",
    "kafka.max.in.flight.requests.per.connection", "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "checkpointLocation", "queryName",
)  # fmt: skip
"""Settings of Kafka's Java client, and of Spark itself, that say nothing to us."""

_JAAS: Final = re.compile(r"(username|password)\s*=\s*\"([^\"]*)\"")
_PROTOCOLS: Final = {
    "PLAINTEXT": False, "SASL_PLAINTEXT": False, "SSL": True, "SASL_SSL": True,
}  # fmt: skip
_FLAGS: Final = {"true": True, "false": False}


class Given:
    """The options of the user, by the names of a table of options."""

    def __init__(self, options: Mapping[str, str], table: Iterable[Option]) -> None:
        rows = tuple(table)
        spelled = {name.lower(): (name, row) for row in rows for name in (row.name, *row.aliases)}
        passed_over = {name.lower() for name in PASSED_OVER}
        self._values: dict[str, tuple[str, str]] = {}
        for given, value in options.items():
            if given.lower() in passed_over:
                continue
            if given.lower() not in spelled:
                raise _unknown(given, [row.name for row in rows])
            name, row = spelled[given.lower()]  # Spark writes all of it small
            if row.name in self._values:
                other = self._values[row.name][0]
                raise ConfigError(f"options {other} and {name} mean the same: give one of them")
            self._values[row.name] = (name, value)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str, default: str = "") -> str:
        """The text of an option."""
        return self._values[name][1] if name in self._values else default

    def spelled(self, name: str) -> str:
        """The name under which the user gave it."""
        return self._values[name][0] if name in self._values else name

    def flag(self, name: str, *, default: bool) -> bool:
        """`true` or `false`."""
        if name not in self._values:
            return default
        given, value = self._values[name]
        if value.lower() not in _FLAGS:
            raise ConfigError(f"option {given}: {value!r} is neither true nor false")
        return _FLAGS[value.lower()]

    def number(self, name: str, least: int = 0, most: int = (1 << 63) - 1) -> int | None:
        """A whole number; None when it was not given."""
        if name not in self._values:
            return None
        given, value = self._values[name]
        if not re.fullmatch(r"-?[0-9]{1,19}", value) or not least <= int(value) <= most:
            raise ConfigError(f"option {given}: {value!r} is not a number from {least} to {most}")
        return int(value)

    def choice(self, name: str, choices: Iterable[str], default: str) -> str:
        """One of some words, without regard to case."""
        given, value = self._values.get(name, (name, default))
        known = {word.lower(): word for word in choices}
        if value.lower() not in known:
            raise ConfigError(
                f"option {given}: {value!r} is not one of {', '.join(known.values())}"
            )
        return known[value.lower()]


def _unknown(name: str, known: list[str]) -> ConfigError:
    lower = {row.lower(): row for row in known}
    near = difflib.get_close_matches(name.lower(), lower, n=1)
    hint = f"did you mean {lower[near[0]]}?" if near else f"known are {', '.join(sorted(known))}"
    return ConfigError(f"option {name} is not known: {hint}")


def access_of(given: Given) -> Access:
    """How to reach the broker. Raises ConfigError."""
    # Spark makes sources and sinks at the driver, so it is the driver's environment that counts.
    servers, named = os.environ.get(SERVERS, ""), SERVERS
    if "servers" in given:
        servers, named = given.text("servers"), f"option {given.spelled('servers')}"
    elif not servers:
        raise ConfigError(
            f"option servers is missing: host:port of the broker's Kafka listener, or {SERVERS}"
            " in the environment"
        )
    user, password = given.text("user"), given.text("password")
    if "kafka.sasl.jaas.config" in given:
        found = dict(_JAAS.findall(given.text("kafka.sasl.jaas.config")))
        if "username" not in found:
            raise ConfigError('option kafka.sasl.jaas.config: it has no username="…"')
        user, password = user or found["username"], password or found.get("password", "")
    if password and not user:
        raise ConfigError("option password is given, but no user")
    protocol = given.choice("kafka.security.protocol", _PROTOCOLS, "PLAINTEXT")
    tls = given.flag("tls", default=_PROTOCOLS[protocol] or "tls.ca" in given)
    timeout_ms = given.number("timeoutMs", 0, 3_600_000)
    return Access(
        servers=parse_servers(servers, named),
        user=user,
        password=password,
        mechanism=given.choice("sasl.mechanism", MECHANISMS, "PLAIN"),
        tls=tls,
        ca_file=given.text("tls.ca"),
        cert_file=given.text("tls.cert"),
        key_file=given.text("tls.key"),
        key_password=given.text("tls.keyPassword"),
        check_hostname=given.flag("tls.checkHostname", default=True),
        timeout_s=60.0 if timeout_ms is None else timeout_ms / 1000,
        client_id=CLIENT_ID,
    )
