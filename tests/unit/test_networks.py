"""Networks that operators list, and addresses in them."""

from __future__ import annotations

import pytest

from onelog.base.errors import ConfigError
from onelog.base.networks import is_within, parse_networks


@pytest.mark.parametrize(
    ("texts", "host", "within"),
    [
        (("10.0.0.0/8", "::1"), "10.1.2.3", True),
        (("10.0.0.0/8", "::1"), "11.1.2.3", False),
        (("10.0.0.0/8", "::1"), "::1", True),
        (("fe80::/10",), "fe80::1%eth0", True),
        (("10.0.0.0/8",), "::ffff:10.1.2.3", True),
        (("::ffff:0:0/96",), "::ffff:10.1.2.3", True),
        (("::/0",), "10.1.2.3", False),
        ((), "10.1.2.3", False),
    ],
)
def test_an_address_is_in_a_network_of_its_family_also_as_a_peer_of_a_socket_of_both(
    texts, host, within
):
    assert is_within(parse_networks("some.key", texts), host) is within


@pytest.mark.parametrize("text", ["10.0.0.1/8", "10.0.0.0/33", "here", ""])
def test_a_network_that_is_none_is_refused_by_its_key_with_an_example(text):
    with pytest.raises(ConfigError, match=r"^some\.key: .*; write networks such as 10\.0\.0\.0/8"):
        parse_networks("some.key", ("10.0.0.0/8", text))


def test_what_is_no_address_is_not_guessed_at():
    with pytest.raises(ValueError, match="does not appear to be"):
        is_within(parse_networks("some.key", ("10.0.0.0/8",)), "localhost")
