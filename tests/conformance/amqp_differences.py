"""Where RabbitMQ 3.10 answers otherwise than we do: the scenario, and what RabbitMQ does.

Rules: each row is a test that passes on ours and has to fail on RabbitMQ. docs/reference/amqp.md
explains the rows to users.
"""

from __future__ import annotations

DIFFERENCES: dict[str, str] = {
    "test_a_tune_outside_of_the_offer_is_refused_with_530": "it closes the connection untold",
}
