"""The `onelog` command line."""

from onelog.cli.main import run

__all__ = ["run"]
