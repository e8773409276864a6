"""Paths of the broker as a whole: overview, nodes, health, and what there is nothing of here."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from onelog.admin.rabbitmq.desk import Desk, Handler, Table
from onelog.admin.rabbitmq.listing import answer, many, one
from onelog.admin.rabbitmq.node import node_row, overview, port_of, protocol_of
from onelog.admin.rabbitmq.requests import BadRequest, part
from onelog.base.errors import NotFound


class BrokerPaths:
    """Handlers."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def table(self) -> Table:
        """The paths, and the function for each."""
        checks: dict[str, Handler] = {
            "alarms": self.alarms,
            "local-alarms": self.alarms,
            "virtual-hosts": self.fine,
            "node-is-mirror-sync-critical": self.alone,
            "node-is-quorum-critical": self.alone,
            "port-listener/{port}": self.port,
            "protocol-listener/{protocol:path}": self.protocol,
        }
        nothing = (
            "policies",
            "policies/{vhost}",
            "operator-policies",
            "operator-policies/{vhost}",
            "parameters",
            "parameters/{component}",
            "global-parameters",
            "vhost-limits",
            "user-limits",
            "topic-permissions",
            "extensions",
            "feature-flags",
        )
        gone: dict[str, Handler] = {
            "GET": self.missing,
            "PUT": self.refused,
            "DELETE": self.missing,
        }
        named = (
            "policies/{vhost}/{name}",
            "operator-policies/{vhost}/{name}",
            "parameters/{component}/{vhost}/{name}",
            "global-parameters/{name}",
            "vhost-limits/{vhost}/{name}",
            "topic-permissions/{vhost}/{user}",
        )
        return {
            "/overview": {"GET": self.overview},
            "/cluster-name": {"GET": self.cluster_name},
            "/nodes": {"GET": self.nodes},
            "/nodes/{name}": {"GET": self.node},
            "/healthchecks/node": {"GET": self.alarms},
            "/aliveness-test/{vhost}": {"GET": self.alive},
            **{f"/health/checks/{path}": {"GET": check} for path, check in checks.items()},
            **{f"/{path}": {"GET": self.nothing} for path in nothing},
            **{f"/{path}": gone for path in named},
        }

    async def overview(self, request: Request) -> Response:
        """What every dashboard asks first."""
        amqp = self._desk.amqp
        return one(request, overview(self._desk.info(), amqp.node, await amqp.totals()))

    async def cluster_name(self, request: Request) -> Response:
        """What people call this."""
        return one(request, {"name": self._desk.info().node_name})

    async def nodes(self, request: Request) -> Response:
        """The one node."""
        return await many(request, [await self._node()])

    async def node(self, request: Request) -> Response:
        """That node by name."""
        if part(request, "name") != self._desk.amqp.node:
            raise NotFound("there is no such node")
        return one(request, await self._node())

    async def _node(self) -> dict[str, Any]:
        amqp = self._desk.amqp
        return await node_row(self._desk.info(), amqp.node, await amqp.totals())

    # -- health

    async def alarms(self, _request: Request) -> Response:
        """Whether anything is wrong that an operator has to look at."""
        report = self._desk.health.ready()
        if report.ok:
            return answer({"status": "ok"})
        wrong = {name: text for name, text in report.checks.items() if text != "ok"}
        alarms = [{"node": self._desk.amqp.node, "resource": name} for name in wrong]
        return answer(
            {"status": "failed", "reason": "; ".join(wrong.values()), "alarms": alarms}, 503
        )

    async def fine(self, _request: Request) -> Response:
        """Every virtual host that there is runs."""
        self._desk.amqp.vhost_names()
        return answer({"status": "ok"})

    async def alone(self, _request: Request) -> Response:
        """Nobody depends on this node to keep a majority."""
        return answer({"status": "ok", "reason": "single node cluster"})

    async def port(self, request: Request) -> Response:
        """Whether somebody listens on a port."""
        text = part(request, "port")
        if not (text.isascii() and text.isdigit() and len(text) <= 5):
            raise BadRequest("Invalid port")
        ports = [port_of(row) for row in self._desk.info().listeners]
        if int(text) in ports:
            return answer({"status": "ok", "port": int(text)})
        return _no_listener(int(text), "ports", ports)

    async def protocol(self, request: Request) -> Response:
        """Whether somebody speaks a protocol."""
        wanted = part(request, "protocol")
        spoken = [protocol_of(row) for row in self._desk.info().listeners]
        if wanted in spoken or (wanted in ("amqp091", "amqp0-9-1") and "amqp" in spoken):
            return answer({"status": "ok", "protocol": wanted})
        return _no_listener(wanted, "protocols", spoken)

    async def alive(self, request: Request) -> Response:
        """Whether a message goes through a virtual host."""
        if await self._desk.amqp.is_alive(part(request, "vhost")):
            return answer({"status": "ok"})
        return answer({"status": "failed", "reason": "the message did not come out"}, 503)

    async def nothing(self, request: Request) -> Response:
        """Lists of what does not exist here, so that tools that show them go on."""
        if "vhost" in request.path_params:
            self._desk.amqp.known_vhost(part(request, "vhost"))
        return answer([])

    async def refused(self, request: Request) -> Response:
        """Refuse objects that OneLog does not keep."""
        kind = request.url.path.split("/")[2]
        raise BadRequest(
            f"{kind} are not kept here: arguments of queues and exchanges say the same"
        )

    async def missing(self, _request: Request) -> Response:
        """There is none of these."""
        raise NotFound("there is none of these here")


def _no_listener(missing: Any, name: str, found: list[Any]) -> Response:
    body = {"status": "failed", "reason": "No active listener", "missing": missing, name: found}
    return answer(body, 503)
