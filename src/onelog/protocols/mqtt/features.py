"""What an operator chooses of MQTT beside its limits: one struct per feature, all with defaults."""

from __future__ import annotations

import msgspec

from onelog.config.mqtt_rules import AutoSubscription, RewriteRule
from onelog.protocols.mqtt.delayed import DelayedSettings
from onelog.protocols.mqtt.shares import ShareSettings
from onelog.protocols.mqtt.system import SystemSettings


class Redirect(msgspec.Struct, frozen=True, kw_only=True):
    """Where clients are sent instead of being served (MQTT5 4.11)."""

    to: str = ""
    permanent: bool = False


class MqttFeatures(msgspec.Struct, frozen=True, kw_only=True):
    """The features of a hub."""

    shares: ShareSettings = ShareSettings()
    delayed: DelayedSettings = DelayedSettings()
    system: SystemSettings = SystemSettings()
    rewrite: tuple[RewriteRule, ...] = ()
    auto_subscribe: tuple[AutoSubscription, ...] = ()
    redirect: Redirect = Redirect()
