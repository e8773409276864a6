"""The connection's states: every pair of state and packet is either in the table or refused."""

from __future__ import annotations

import pytest

from onelog.protocols.mqtt.errors import MqttError
from onelog.protocols.mqtt.packet_types import SENDERS, PacketType, Side
from onelog.protocols.mqtt.reasons import ReasonCode
from onelog.protocols.mqtt.state import RECEIVED, SENT, State, advance, advance_sent

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
    state = advance_sent(state, PacketType.AUTH)
    state = advance(state, PacketType.AUTH)
    assert state is State.AUTHENTICATING
    state = advance_sent(state, PacketType.CONNACK)
    assert state is State.CONNECTED
    for packet in (PacketType.SUBSCRIBE, PacketType.PUBLISH, PacketType.AUTH, PacketType.PINGREQ):
        state = advance(state, packet)
    assert state is State.CONNECTED
    assert advance(state, PacketType.DISCONNECT) is State.CLOSED
    assert advance_sent(state, PacketType.DISCONNECT) is State.CLOSED


def test_a_client_cannot_answer_its_own_connect():
    with pytest.raises(MqttError):
        advance(State.AUTHENTICATING, PacketType.CONNACK)


def test_nothing_is_sent_before_connect_or_after_the_end():
    for state in (State.NEW, State.CLOSED):
        for packet in PacketType:
            with pytest.raises(AssertionError):
                advance_sent(state, packet)


def test_the_tables_have_a_row_for_each_state_and_only_packets_of_their_side():
    assert set(RECEIVED) == set(SENT) == set(State)
    for table, side in ((RECEIVED, Side.CLIENT), (SENT, Side.SERVER)):
        used = {packet for row in table.values() for packet in row}
        assert used == {packet for packet in PacketType if side in SENDERS[packet]}
