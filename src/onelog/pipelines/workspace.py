"""Where a pipeline runs: its broker, the data directory, and the names that follow from them.

Rules: a pipeline needs no preparation. By default, tables are below `lakehouse` of the data
directory, with a catalog in a file, and checkpoints below `pipelines`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from onelog.base.errors import ConfigError
from onelog.pipelines.spec import BrokerKeys, Options, TableKeys
from onelog.spark.lakehouse import home
from onelog.spark.masters import CONNECT_PORT
from onelog.spark.options import SERVERS

_OWN_SERVER: Final = re.compile(r"sc://localhost(?::(\d{1,5}))?/?")


@dataclass(frozen=True)
class Workspace:
    """The directories and the broker that a pipeline works with."""

    data_dir: Path
    servers: str
    """host:port of the Kafka listener, unless the pipeline names another one."""
    folder: Path = Path()
    """Where the pipeline's file lies: its Python files are found from there."""

    @property
    def lakehouse(self) -> Path:
        """Where tables lie that say nothing else."""
        return self.data_dir.absolute() / "lakehouse"

    def state_dir(self, name: str) -> Path:
        """The directory with the state of a pipeline."""
        return self.data_dir.absolute() / "pipelines" / name

    def environment(self) -> dict[str, str]:
        """The environment of a Spark that is started here; it replaces options."""
        return {SERVERS: self.servers, home.LAKEHOUSE: str(self.lakehouse)}

    def token_file(self, port: int) -> Path:
        """Where `onelog spark serve` says how it is connected to."""
        return self.data_dir.absolute() / "spark" / str(port) / "address"

    def spark(self, master: str) -> str:
        """A master as it is reached: a server of this data directory asks for its token."""
        found = _OWN_SERVER.fullmatch(master)
        if found is None:
            return master
        try:
            return self.token_file(int(found[1] or CONNECT_PORT)).read_text()
        except OSError:
            return master

    def connection(self, broker: BrokerKeys) -> dict[str, str]:
        """The options of source and sink that reach the broker."""
        found = {"servers": broker.servers or self.servers}
        if broker.user:
            found["user"] = broker.user
        if broker.password_file:
            found["password"] = _first_line(self.folder / broker.password_file)
        if broker.mechanism:
            found["sasl.mechanism"] = broker.mechanism
        if broker.tls or broker.ca_file:
            found["tls"] = "true"
        if broker.ca_file:
            found["tls.ca"] = str((self.folder / broker.ca_file).absolute())
        return found | as_text(broker.options)

    def table(self, keys: TableKeys) -> dict[str, str]:
        """The options of `format("onelog-table")` that name a table."""
        named = keys.named()
        assert named is not None, "it was checked when the file was read"
        kind, name = named
        found = {"tableFormat": kind, "table": self.table_name(kind, name)}
        if kind == "iceberg":
            said = {"catalog": keys.catalog, "warehouse": keys.warehouse}
            found |= home.catalog_options(self.lakehouse)
            found |= {option: text for option, text in said.items() if text}
        return found | as_text(keys.options)

    def table_name(self, kind: str, name: str) -> str:
        """A table's whole name, in its catalog or on the disk."""
        return home.table_name(kind, name, self.lakehouse)


def as_text(options: Mapping[str, Any] | Options) -> dict[str, str]:
    """Options as Spark takes them."""
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }


def _first_line(file: Path) -> str:
    try:
        return file.read_text().partition("\n")[0]
    except OSError as error:
        raise ConfigError(f"broker.password_file: {file}: {error.strerror}") from error
