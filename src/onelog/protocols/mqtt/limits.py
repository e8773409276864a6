"""The bounds of MQTT connections and sessions: they are keys of the configuration."""

from onelog.config.mqtt import MqttLimits

__all__ = ["MqttLimits"]
