"""Configuration: one strict TOML file, the environment, and flags, merged into one struct."""

from onelog.config.files import file_problems
from onelog.config.keys import ENV_PREFIX
from onelog.config.load import RESERVED_ENV, Loaded, load
from onelog.config.model import Config
from onelog.config.ports import DEFAULT_PORTS
from onelog.config.problems import ConfigProblems

__all__ = [
    "Config",
    "ConfigProblems",
    "DEFAULT_PORTS",
    "ENV_PREFIX",
    "Loaded",
    "RESERVED_ENV",
    "file_problems",
    "load",
]
