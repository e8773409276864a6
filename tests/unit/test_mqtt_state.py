"""The connection's states: every pair of state and packet is either in the table or refused."""

from __future__ import annotations

import pytest

from onelog.protocols.mqtt.errors import MqttError
from onelog.protocols.mqtt.packet_types import SENDERS, PacketType, Side
from onelog.protocols.mqtt.reasons import ReasonCode
from onelog.protocols.mqtt.state import RECEIVED, State, advance

# Written down a second time and in another shape, so that a slip in the table shows.
LEGAL = {
    State.NEW: "CONNECT",
    State.AUTHENTICATING: "AUTH DISCONNECT",
    State.CONNECTED: "PUBLISH PUBACK PUBREC PUBREL PUBCOMP SUBSCRIBE UNSUBSCRIBE PINGREQ AUTH "
    "DISCONNECT",
    State.CLOSED: "",
}


@pytest.mark.parametrize("packet", PacketType)
@pytest.mark.parametrize("state", State)
def test_every_pair_of_state_and_packet_is_legal_or_a_protocol_error(state, packet):
    if packet.name in LEGAL[state].split():
        assert advance(state, packet) is RECEIVED[state][packet]
    else:
        with pytest.raises(MqttError) as caught:
            advance(state, packet)
        assert caught.value.reason is ReasonCode.PROTOCOL_ERROR
        assert state.value in str(caught.value)


def test_a_connection_lives_from_connect_to_disconnect():
    state = advance(State.NEW, PacketType.CONNECT)
    assert state is State.AUTHENTICATING
    assert advance(state, PacketType.AUTH) is State.AUTHENTICATING
    state = State.CONNECTED  # the server sent a CONNACK that accepts
    for packet in (PacketType.SUBSCRIBE, PacketType.PUBLISH, PacketType.AUTH, PacketType.PINGREQ):
        state = advance(state, packet)
    assert state is State.CONNECTED
    assert advance(state, PacketType.DISCONNECT) is State.CLOSED


def test_a_client_cannot_answer_its_own_connect():
    with pytest.raises(MqttError):
        advance(State.AUTHENTICATING, PacketType.CONNACK)


def test_the_table_has_a_row_for_each_state_and_only_packets_of_clients():
    assert set(RECEIVED) == set(State)
    used = {packet for row in RECEIVED.values() for packet in row}
    assert used == {packet for packet in PacketType if Side.CLIENT in SENDERS[packet]}
