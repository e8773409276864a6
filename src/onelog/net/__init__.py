"""Sockets: where the server listens."""

from onelog.net.listener import Listener, bind

__all__ = ["Listener", "bind"]
