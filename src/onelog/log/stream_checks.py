"""What the configuration of a stream has to keep: its name, its captures, its engine, its tier.

Rule: a check changes nothing, so a protocol may ask before it promises anything.
"""

from __future__ import annotations

from onelog.base.errors import AlreadyExists, InvalidName, InvalidRequest
from onelog.log.config import StreamConfig, check_change, check_config
from onelog.log.directory import Directory
from onelog.log.opening import Opener
from onelog.log.stream_rows import StreamRows
from onelog.log.tier_config import StoreSupport


class StreamChecks:
    """The checks of a catalog."""

    def __init__(self, directory: Directory, rows: StreamRows, opener: Opener) -> None:
        self._directory = directory
        self._rows = rows
        self._opener = opener
        self.store_support = StoreSupport()
        """What the broker's object store can do for streams."""
        self.reserved: tuple[str, ...] = ()
        """How names begin that are only for streams of topics that begin with $: whoever makes
        these streams finds them by name."""

    def new(self, config: StreamConfig) -> None:
        """Raise what `create` would raise for this configuration now."""
        check_config(config)
        self._check_name(config)
        self._check_store(config)
        self._opener.engine(config)
        if config.name in self._directory.by_name or self._rows.find(config.name) is not None:
            raise AlreadyExists(f"the stream {config.name!r} exists already")
        self._directory.check_captures(config)

    def altered(self, config: StreamConfig) -> None:
        """Raise what `alter` would raise for this configuration now."""
        old = self._directory.get(config.name).config
        check_change(old, config)
        self._opener.hosting.check_change(old, config)
        if config.tier != old.tier:
            self._check_store(config)
        self._directory.check_captures(config)

    def is_reserved(self, name: str) -> bool:
        """Whether only the broker makes streams of this name."""
        return name.startswith(self.reserved)

    def _check_name(self, config: StreamConfig) -> None:
        if self.is_reserved(config.name) and not all(
            text.startswith("$") for text in config.captures
        ):
            raise InvalidName(
                f"a stream cannot have the name {config.name!r}: names that begin so belong to"
                " streams that the broker makes; choose another one"
            )

    def _check_store(self, config: StreamConfig) -> None:
        lacking = self.store_support.lacks(config.tier, config.engine)
        if lacking is not None:
            raise InvalidRequest(f"stream {config.name}: {lacking}")
