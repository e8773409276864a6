"""OneLog: one append-only log, read and written by every messaging protocol."""

__version__ = "0.1.0"
