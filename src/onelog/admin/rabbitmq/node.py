"""This node as RabbitMQ's overview and list of nodes show one."""

from __future__ import annotations

import asyncio
import os
import resource
from pathlib import Path
from typing import Any, Final

from onelog.admin.contract import ListenerInfo, ServerInfo
from onelog.admin.rabbitmq.contract import API_VERSION

Row = dict[str, Any]

PROTOCOLS: Final[dict[str, str]] = {
    "amqp": "amqp",
    "amqp_tls": "amqp/ssl",
    "mqtt": "mqtt",
    "mqtt_tls": "mqtt/ssl",
    "mqtt_ws": "http/web-mqtt",
    "mqtt_wss": "https/web-mqtt",
    "kafka": "kafka",
    "kafka_tls": "kafka/ssl",
    "amqp_management": "http",
    "admin": "http/onelog",
}
"""Our listeners, and RabbitMQ's word for what they speak."""

_TYPES: Final = ("direct", "fanout", "headers", "topic")
_MECHANISMS: Final = ("PLAIN", "AMQPLAIN", "EXTERNAL", "ANONYMOUS")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def port_of(listener: ListenerInfo) -> int:
    """The port that a listener has."""
    return int(listener.address.rpartition(":")[2])


def protocol_of(listener: ListenerInfo) -> str:
    """RabbitMQ's word for what a listener speaks."""
    return PROTOCOLS.get(listener.name, listener.name)


def overview(info: ServerInfo, node: str, totals: Row) -> Row:
    """What every dashboard asks first."""
    return {
        "management_version": API_VERSION,
        "rabbitmq_version": API_VERSION,
        "product_name": "OneLog",
        "product_version": info.version,
        "cluster_name": info.node_name,
        "node": node,
        "rates_mode": "basic",
        "sample_retention_policies": {"global": [], "basic": [], "detailed": []},
        "exchange_types": _exchange_types(),
        "disable_stats": False,
        "enable_queue_totals": False,
        "statistics_db_event_queue": 0,
        **totals,
        "listeners": [_listener(node, row) for row in info.listeners],
        "contexts": _contexts(info, node),
    }


def _exchange_types() -> list[Row]:
    return [
        {"name": name, "description": f"AMQP {name} exchange", "enabled": True} for name in _TYPES
    ]


def _listener(node: str, listener: ListenerInfo) -> Row:
    return {
        "node": node,
        "protocol": protocol_of(listener),
        "ip_address": listener.address.rpartition(":")[0].strip("[]"),
        "port": port_of(listener),
        "socket_opts": {},
    }


def _contexts(info: ServerInfo, node: str) -> list[Row]:
    return [
        {
            "node": node,
            "description": "Management",
            "path": "/",
            "ip": row.address.rpartition(":")[0].strip("[]"),
            "port": str(port_of(row)),
        }
        for row in info.listeners
        if row.name == "amqp_management"
    ]


async def node_row(info: ServerInfo, node: str, totals: Row) -> Row:
    """The node: memory, disk, open files."""
    measured = await asyncio.to_thread(_measured, info.data_dir)
    return {
        "name": node,
        "type": "disc",
        "running": True,
        "os_pid": str(info.pid),
        "uptime": int(info.uptime_s * 1000),
        "processors": os.cpu_count() or 1,
        "run_queue": 0,
        "partitions": [],
        "cluster_links": [],
        "rates_mode": "basic",
        "exchange_types": _exchange_types(),
        "auth_mechanisms": [
            {"name": name, "description": f"SASL {name}", "enabled": True} for name in _MECHANISMS
        ],
        "applications": [
            {"name": "onelog", "description": "OneLog", "version": info.version},
            {"name": "python", "description": "Python", "version": info.python},
        ],
        "enabled_plugins": [],
        "contexts": _contexts(info, node),
        "log_files": [],
        "db_dir": info.data_dir,
        "config_files": [] if info.config_file is None else [info.config_file],
        "mem_calculation_strategy": "rss",
        "mem_alarm": False,
        "disk_free_alarm": False,
        "disk_free_limit": 0,
        "sockets_used": totals["object_totals"]["connections"],
        **totals["churn_rates"],
        **measured,
    }


def _measured(data_dir: str) -> Row:
    disk = os.statvfs(data_dir)
    files_max, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    pages = Path("/proc/self/statm").read_text().split()
    return {
        "mem_used": int(pages[1]) * _PAGE_BYTES,
        "mem_limit": os.sysconf("SC_PHYS_PAGES") * _PAGE_BYTES,
        "disk_free": disk.f_bavail * disk.f_frsize,
        "fd_used": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "fd_total": files_max,
        "sockets_total": files_max,
    }
