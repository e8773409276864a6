"""The basic property of each field of a message (`record/fields.py`); a field may have none."""

from __future__ import annotations

from typing import Final

PROPERTY_OF: Final[dict[str, str]] = {
    "qos": "delivery_mode",
    "content_type": "content_type",
    "content_encoding": "content_encoding",
    "reply_to": "reply_to",
    "correlation": "correlation_id",
    "expires_ms": "expiration",
    "message_id": "message_id",
    "type": "type",
    "user_id": "user_id",
    "app_id": "app_id",
    "cluster_id": "cluster_id",
    "priority": "priority",
    "timestamp": "timestamp",
}
"""The name of a field → the name of its property."""
