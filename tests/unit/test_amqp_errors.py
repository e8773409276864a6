"""Every error has its AMQP reply code."""

from __future__ import annotations

import pytest

from onelog.base import errors
from onelog.protocols.amqp.errors import CODES, HARD, AmqpError, Reply, amqp_error
from onelog.queues import errors as of_queues

ROOMS = (errors.__name__, of_queues.__name__)


def tree(root: type[errors.OnelogError]) -> set[type[errors.OnelogError]]:
    found = {root} if root.__module__ in ROOMS else set()
    for child in root.__subclasses__():
        found |= tree(child)
    return found


def test_every_error_of_the_house_and_of_queues_has_its_own_row():
    assert set(CODES) == tree(errors.OnelogError)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (of_queues.NotDeclared("x"), 404),
        (of_queues.QueueLocked("x"), 405),
        (of_queues.NotSupported("x"), 540),
        (of_queues.UnknownExchangeType("x"), 503),
        (errors.NotAuthorized("x"), 403),
        (errors.InvalidRequest("x"), 406),
        (errors.ProtocolViolation("x"), 502),
    ],
)
def test_what_queues_refuse_is_told_as_rabbitmq_tells_it(error, code):
    found = amqp_error(error)
    assert (found.code, str(found)) == (code, "x")
    assert found.hard == (found.code in HARD)


def test_an_error_of_amqp_stays_as_it_is():
    error = AmqpError(Reply.NO_ROUTE, "x")
    assert amqp_error(error) is error
