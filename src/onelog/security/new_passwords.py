"""What a new password has to be.

Rules: every door that sets a password asks: the console and the admin API, RabbitMQ's management
API and its definitions, and the commands. A password that a user already has goes on to work, and
Kafka's tools send derived keys, which say nothing of the password.
"""

from __future__ import annotations

from typing import Final

from onelog.base.errors import InvalidRequest

CHARS_MIN: Final = 8
"""Characters of a new password."""


def check_new_password(name: str, password: str) -> None:
    """Refuse a weak password for a user of this name. Raises InvalidRequest."""
    if len(password) < CHARS_MIN:
        raise InvalidRequest(
            f"the password is too short: choose one of at least {CHARS_MIN} characters"
        )
    if password.casefold() == name.casefold():
        raise InvalidRequest("the password is the user's name: choose another one")
