"""Sockets: where the server listens, and what stands between a socket and a protocol."""

from onelog.net.binding import BoundListener, ProtocolListeners, words
from onelog.net.connections import ConnectionCounters, Connections, connection_samples
from onelog.net.deadline import Deadline
from onelog.net.gate import Gate, GateLimits
from onelog.net.listener import Listener, bind
from onelog.net.login_clock import LoginClock
from onelog.net.pauses import ByteBound, Pauses
from onelog.net.peer import Peer, ProtocolFactory, StreamProtocol, StreamTransport
from onelog.net.refusing import Refusing
from onelog.net.server import ProxySettings, ServedListener, start_listener
from onelog.net.silence import SilenceWatch
from onelog.net.tasks import OwnedTasks
from onelog.net.throttle import Throttled
from onelog.net.tls import Tls, TlsSettings
from onelog.net.websocket import WebSocketSettings

__all__ = [
    "Listener",
    "bind",
    "start_listener",
    "ServedListener",
    "BoundListener",
    "ProtocolListeners",
    "Refusing",
    "Connections",
    "ConnectionCounters",
    "connection_samples",
    "Deadline",
    "LoginClock",
    "OwnedTasks",
    "Pauses",
    "ByteBound",
    "SilenceWatch",
    "Throttled",
    "words",
    "Peer",
    "ProtocolFactory",
    "StreamProtocol",
    "StreamTransport",
    "GateLimits",
    "Gate",
    "Tls",
    "TlsSettings",
    "WebSocketSettings",
    "ProxySettings",
]
