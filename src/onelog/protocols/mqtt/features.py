"""What an operator chooses of MQTT beside its limits: one struct per feature, all with defaults."""

from __future__ import annotations

import msgspec

from onelog.protocols.mqtt.delayed import DelayedSettings
from onelog.protocols.mqtt.shares import ShareSettings


class MqttFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """The features of a hub."""

    shares: ShareSettings = ShareSettings()
    delayed: DelayedSettings = DelayedSettings()
