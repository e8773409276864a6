"""What an operator chooses of MQTT beside its limits: one struct per feature, all with defaults."""

from __future__ import annotations

import msgspec

from onelog.protocols.mqtt.auto_subscribe import AutoSubscription
from onelog.protocols.mqtt.delayed import DelayedSettings
from onelog.protocols.mqtt.rewrite import RewriteRule
from onelog.protocols.mqtt.shares import ShareSettings
from onelog.protocols.mqtt.system import SystemSettings


class MqttFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """The features of a hub."""

    shares: ShareSettings = ShareSettings()
    delayed: DelayedSettings = DelayedSettings()
    system: SystemSettings = SystemSettings()
    rewrite: tuple[RewriteRule, ...] = ()
    auto_subscribe: tuple[AutoSubscription, ...] = ()
