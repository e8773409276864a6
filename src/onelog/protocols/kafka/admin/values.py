"""Values of Kafka's settings: their types, where they come from, and how text is read.

Rules: a value that cannot be read is refused with the setting's name; nothing is rounded.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import IntEnum
from typing import Final

from onelog.protocols.kafka.errors import ErrorCode, KafkaError

LONG_MAX: Final = 2**63 - 1
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_DECIMAL: Final = re.compile(r"[+-]?[0-9]{0,19}\.?[0-9]{0,19}([eE][+-]?[0-9]{1,3})?")


class ValueType(IntEnum):
    """What a setting holds, as the protocol numbers it."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


class ValueSource(IntEnum):
    """Where a value comes from, as the protocol numbers it."""

    TOPIC = 1
    """A client chose it for this topic."""
    BROKER = 4
    """The broker's configuration sets it."""
    DEFAULT = 5
    """It is the built-in default."""


def invalid(name: str, text: str, why: str) -> KafkaError:
    """The error for a value that a setting does not accept."""
    return KafkaError(ErrorCode.invalid_config, f"{name} cannot be {text[:100]!r}: {why}")


def read_boolean(name: str, text: str) -> bool:
    """true or false, in any case."""
    word = text.strip().lower()
    if word not in ("true", "false"):
        raise invalid(name, text, "it is true or false")
    return word == "true"


def _integer(bits: int) -> Callable[[str, str], int]:
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def read(name: str, text: str) -> int:
        value = int(text) if _INTEGER.fullmatch(text.strip()) else high + 1
        if not low <= value <= high:
            raise invalid(name, text, f"it is a whole number of {bits} bits")
        return value

    return read


def read_double(name: str, text: str) -> float:
    """A number."""
    word = text.strip()
    if not _DECIMAL.fullmatch(word) or not any(char.isdigit() for char in word):
        raise invalid(name, text, "it is a number")
    return float(word)


def read_list(name: str, text: str) -> list[str]:
    """Words joined by commas."""
    del name
    return [word.strip() for word in text.split(",") if word.strip()]


def _read_string(name: str, text: str) -> str:
    del name
    return text.strip()


READERS: Final[dict[ValueType, Callable[[str, str], object]]] = {
    ValueType.BOOLEAN: read_boolean,
    ValueType.STRING: _read_string,
    ValueType.SHORT: _integer(16),
    ValueType.INT: _integer(32),
    ValueType.LONG: _integer(64),
    ValueType.DOUBLE: read_double,
    ValueType.LIST: read_list,
}
"""(name, text) → value; total."""


def shown(value: object) -> str:
    """A value as Kafka writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return ",".join(value)
    return str(value)
