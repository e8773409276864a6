"""Configuration: one strict TOML file, the environment, and flags, merged into one struct."""

from onelog.config.keys import ENV_PREFIX
from onelog.config.load import RESERVED_ENV, Loaded, load
from onelog.config.model import Config
from onelog.config.ports import DEFAULT_PORTS

__all__ = ["Config", "DEFAULT_PORTS", "ENV_PREFIX", "Loaded", "RESERVED_ENV", "load"]
