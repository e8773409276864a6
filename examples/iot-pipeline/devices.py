"""The devices: a reading by MQTT every second. One has a moment of heat, one gets too warm."""

import json
import math
import random

import paho.mqtt.client as mqtt

BEGAN = 1_790_000_000
SECONDS = 120
DEVICES = ("boiler", "cellar", "hall", "kitchen", "roof")
SPIKE = ("kitchen", range(40, 43))
DRIFT = ("roof", 70)


def temperature(device: str, second: int, noise: random.Random) -> float:
    number = DEVICES.index(device)
    value = 18 + number + 2 * math.sin(second / 15 + number) + noise.uniform(-0.4, 0.4)
    if device == SPIKE[0] and second in SPIKE[1]:
        value += 20
    if device == DRIFT[0] and second > DRIFT[1]:
        value += (second - DRIFT[1]) * 0.2
    return round(value, 2)


def publish(port: int) -> int:
    """Send all readings; how many they were."""
    noise = random.Random(7)  # noqa: S311 - the same weather every time
    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, "devices")
    client.connect("127.0.0.1", port)
    client.loop_start()
    sent = []
    # The last second is a minute later: it tells the pipeline that the windows before are over.
    for second in [*range(SECONDS), SECONDS + 60]:
        for device in DEVICES:
            reading = {
                "device": device,
                "time": BEGAN + second,
                "temperature": temperature(device, second, noise),
            }
            topic = f"sensors/{device}/telemetry"
            sent.append(client.publish(topic, json.dumps(reading), qos=1))
    for one in sent:
        one.wait_for_publish(60)
    client.disconnect()
    client.loop_stop()
    return len(sent)
