"""Where RabbitMQ 3.10 answers otherwise than we do: the scenario, and what RabbitMQ does.

Rules: each row is a test that passes on ours and has to fail on RabbitMQ. docs/reference/amqp.md
explains the rows to users.
"""

from __future__ import annotations

_NO_STREAM = "test_what_a_stream_cannot_do_is_refused"

_BAD_BYTES = "test_bad_bytes_are_answered_with_their_code_and_harm_nobody_else"

DIFFERENCES: dict[str, str] = {
    f"{_BAD_BYTES}[a class that there is not]": "it closes the connection untold",
    f"{_BAD_BYTES}[a method that there is not]": "it closes the connection untold",
    f"{_BAD_BYTES}[a table with an unknown type]": "it closes the connection untold",
    f"{_BAD_BYTES}[a body that is longer than announced]": "it waits for more",
    f"{_BAD_BYTES}[properties that are cut]": "it answers 541",
    f"{_BAD_BYTES}[properties with something behind]": "it answers 541",
    f"{_BAD_BYTES}[headers with an unknown type]": "it answers 541",
    f"{_BAD_BYTES}[headers with a type that only some libraries have]": "it answers 541",
    f"{_BAD_BYTES}[arguments in each other without an end]": "it bounds them by the frame only",
    f"{_BAD_BYTES}[a message larger than configured]": "it waits for the body before it refuses it",
    f"{_BAD_BYTES}[tables in tables without an end]": "it bounds them by the frame only",
    "test_an_acknowledgement_asks_for_more_and_settles_nothing": (
        "its streams send whole chunks, also beyond the prefetch"
    ),
    f"{_NO_STREAM}[an offset that is none]": "it answers 541",
    f"{_NO_STREAM}[an age that is none]": "it answers 541",
    "test_a_tune_outside_of_the_offer_is_refused_with_530": "it closes the connection untold",
}
