"""What each protocol serves without a right: the reason, and the test that proves it.

A test is `file::name`.
"""

from __future__ import annotations

from typing import NamedTuple

from onelog.protocols.kafka.apis import ApiKey
from onelog.protocols.mqtt.packet_types import PacketType
from tests.conformance.amqp_raw import Basic, Channel, Confirm, Tx

FREE = "tests/cross/test_access_matrix.py::test_{}_do_what_needs_no_right_where_nothing_is_allowed"
"""With the name of the protocol's clients."""


class Exempt(NamedTuple):
    """Why something is in no row."""

    reason: str
    test: str


_LOGIN = Exempt(
    "it is the login, before there is a principal",
    "tests/conformance/test_kafka_security.py::test_a_wrong_name_or_password_is_refused",
)
_USERS = (
    "rules do not say who sees and changes users: administrators do, and each user itself",
    "tests/unit/test_kafka_one_node.py::test_who_is_no_administrator_sees_and_changes_only_itself",
)
_MQTT_FREE, _AMQP_FREE = FREE.format("mqtt_clients"), FREE.format("amqp_clients")
_OWN = "it is about messages that its own connection sent or was given: their right was asked then"

EXCEPTIONS: dict[str, dict[object, Exempt]] = {
    "kafka": {
        ApiKey.API_VERSIONS: Exempt(
            "it is asked before the login, and names what this version of the broker serves",
            FREE.format("kafka_clients"),
        ),
        ApiKey.SASL_HANDSHAKE: _LOGIN,
        ApiKey.SASL_AUTHENTICATE: _LOGIN,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Exempt(*_USERS),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Exempt(*_USERS),
    },
    "mqtt": {
        PacketType.AUTH: Exempt(
            "it is the login",
            "tests/conformance/test_mqtt_security.py::"
            "test_a_second_authentication_as_another_user_ends_the_connection",
        ),
        PacketType.PUBACK: Exempt(_OWN, _MQTT_FREE),
        PacketType.PUBREC: Exempt(_OWN, _MQTT_FREE),
        PacketType.PUBREL: Exempt(_OWN, _MQTT_FREE),
        PacketType.PUBCOMP: Exempt(_OWN, _MQTT_FREE),
        PacketType.UNSUBSCRIBE: Exempt("nobody is kept from getting less", _MQTT_FREE),
        PacketType.PINGREQ: Exempt("it says that the client lives", _MQTT_FREE),
        PacketType.DISCONNECT: Exempt("a client may always go", _MQTT_FREE),
    },
    "amqp": {
        Channel.Open: Exempt("a channel is only a way to ask", _AMQP_FREE),
        Channel.Close: Exempt("a client may always go", _AMQP_FREE),
        Channel.Flow: Exempt("it is about deliveries to its own channel", _AMQP_FREE),
        Channel.FlowOk: Exempt("it does nothing", _AMQP_FREE),
        Basic.Qos: Exempt("it is about deliveries to its own channel", _AMQP_FREE),
        Basic.Cancel: Exempt("it ends a consumer of its own channel", _AMQP_FREE),
        Basic.CancelOk: Exempt("it does nothing", _AMQP_FREE),
        Basic.Ack: Exempt(_OWN, _AMQP_FREE),
        Basic.Nack: Exempt(_OWN, _AMQP_FREE),
        Basic.Reject: Exempt(_OWN, _AMQP_FREE),
        Basic.Recover: Exempt(_OWN, _AMQP_FREE),
        Basic.RecoverAsync: Exempt(_OWN, _AMQP_FREE),
        Confirm.Select: Exempt("it is about answers to its own channel", _AMQP_FREE),
        Tx.Select: Exempt("what the transaction holds is asked at its commit", _AMQP_FREE),
        Tx.Rollback: Exempt("it carries out nothing", _AMQP_FREE),
    },
}
