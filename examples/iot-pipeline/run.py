"""Devices by MQTT, windows in Spark, alerts by MQTT and AMQP, an Iceberg table, a picture.

Run it: .venv/bin/python examples/iot-pipeline/run.py [folder] [--master spark://host:7077]

It starts its own broker on free ports, with its data in the folder, and takes about a minute.
"""

import argparse
import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from devices import publish  # noqa: E402 - beside this file
from plot import draw  # noqa: E402
from readers import AmqpReader, MqttReader  # noqa: E402

PICTURES = ("windows.png", "windows.svg")
BARS = "▁▂▃▄▅▆▇█"
ONELOG = [sys.executable, "-m", "onelog"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--master", default="local[*]")
    chosen = parser.parse_args()
    if chosen.folder is not None:
        chosen.folder.mkdir(parents=True, exist_ok=True)
        run(chosen.folder.resolve(), chosen.master)
        print(f"drew {' and '.join(str(chosen.folder / picture) for picture in PICTURES)}")
        return
    with tempfile.TemporaryDirectory() as folder:
        run(Path(folder), chosen.master)
        for picture in PICTURES:
            kept = picture.replace("windows", "iot-pipeline")
            shutil.copyfile(Path(folder) / picture, kept)
            print(f"drew {kept}")


def run(folder: Path, master: str) -> None:
    with broker(folder) as ports:
        readers = {
            "MQTT": MqttReader(ports["mqtt"], "alerts"),
            "AMQP": AmqpReader(ports["amqp"], "alerts"),
        }
        print(f"devices sent {publish(ports['mqtt'])} readings by MQTT")
        subprocess.run(
            [*ONELOG, "pipeline", "run", str(HERE / "pipeline.toml"), "--master", master,
             "--data", str(folder / "data"), "--servers", f"127.0.0.1:{ports['kafka']}"],
            check=True,
        )  # fmt: skip
        windows = read_table(folder)
        wanted = sum(row["anomaly"] is not None for row in windows)
        print(f"the table iot.windows has {len(windows)} windows, {wanted} of them not normal")
        print_lines(windows)
        for protocol, reader in readers.items():
            alerts = reader.wait(wanted)
            print(f"{protocol} read {len(alerts)} alerts")
            for one in sorted(alerts, key=lambda alert: alert["began"]):
                print(
                    f"  {one['began'][11:19]} {one['device']}: {one['anomaly']}, {one['high']} °C"
                )
            if len(alerts) != wanted:
                raise SystemExit(f"{protocol} read {len(alerts)} alerts, and not {wanted}")
        draw(windows, *(folder / picture for picture in PICTURES))


def print_lines(windows: list[dict[str, Any]]) -> None:
    """The means of each device as one line of bars; all have the same scale."""
    low, high = min(row["mean"] for row in windows), max(row["mean"] for row in windows)
    for device in sorted({row["device"] for row in windows}):
        rows = [row for row in windows if row["device"] == device]
        bars = "".join(BARS[int((row["mean"] - low) / (high - low) * 7.99)] for row in rows)
        means = [row["mean"] for row in rows]
        odd = ", ".join(
            f"{row['anomaly']} {row['began']:%H:%M:%S}" for row in rows if row["anomaly"]
        )
        print(f"  {device:8} {bars}  {min(means):.1f} to {max(means):.1f} °C  {odd}".rstrip())


def read_table(folder: Path) -> list[dict[str, Any]]:
    """The table as any reader of Iceberg sees it."""
    lakehouse = folder / "data" / "lakehouse"
    catalog = SqlCatalog("onelog", uri=f"sqlite:///{lakehouse / 'catalog.db'}")
    rows = catalog.load_table("iot.windows").scan().to_arrow().to_pylist()
    catalog.close()
    return sorted(rows, key=lambda row: (row["began"], row["device"]))


@contextlib.contextmanager
def broker(folder: Path) -> Iterator[dict[str, int]]:
    """`onelog serve` for as long as the block runs; the ports of its protocols."""
    names = ("mqtt", "kafka", "amqp", "admin")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    settings = [f"--set=listeners.{name}.port={port}" for name, port in ports.items()]
    with (folder / "broker.log").open("ab") as log:
        process = subprocess.Popen(
            [*ONELOG, "serve", "--data", str(folder / "data"), *settings],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        if not any("is running" in line for line in process.stdout):
            raise SystemExit(f"the broker did not start: {folder / 'broker.log'} says why")
        yield ports
    finally:
        process.terminate()
        process.wait(60)


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


if __name__ == "__main__":
    main()
