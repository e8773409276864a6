"""Where RabbitMQ 3.10 answers otherwise than we do: the scenario, and what RabbitMQ does.

Rules: each row is a test that passes on ours and has to fail on RabbitMQ. docs/reference/amqp.md
explains the rows to users.
"""

from __future__ import annotations

_NO_STREAM = "test_what_a_stream_cannot_do_is_refused"

DIFFERENCES: dict[str, str] = {
    "test_an_acknowledgement_asks_for_more_and_settles_nothing": (
        "its streams send whole chunks, also beyond the prefetch"
    ),
    f"{_NO_STREAM}[an offset that is none]": "it answers 541",
    f"{_NO_STREAM}[an age that is none]": "it answers 541",
    "test_a_tune_outside_of_the_offer_is_refused_with_530": "it closes the connection untold",
}
