"""What `docs/benchmarks.md` says of each benchmark: its sides, their durability, how to repeat it.

Rules: the order here is the order on the page. A benchmark that is not named here is shown last,
with its rows and without a text.
"""

from __future__ import annotations

from typing import NamedTuple


class About(NamedTuple):
    """The text of one benchmark."""

    title: str
    what: str
    sides: tuple[tuple[str, str], ...]
    """Each side and its durability."""
    repeat: str


BENCHES: dict[str, About] = {
    "mqtt": About(
        "MQTT beside Mosquitto",
        "Messages of 256 B, or 64 B where each waits for the last one. A C program is publisher and"
        " subscriber; both brokers run in turns.",
        (
            ("OneLog, `os`", "in the page cache of the system before PUBACK and before delivery;"
             " survives a crash of the broker, not of the machine"),
            ("OneLog, `fsync`", "on the disk before PUBACK and before delivery; survives both"),
            ("Mosquitto", "in memory only: it survives nothing, and has nothing to write"),
        ),
        "make bench-mqtt",
    ),
    "kafka": About(
        "Kafka beside Apache Kafka",
        "One broker, one partition. *librdkafka* batches as it likes; *16 KB batches* are prebuilt"
        " requests, as the Java client's defaults make them.",
        (
            ("OneLog, `os`", "in the page cache before the answer"),
            ("Apache Kafka, `os`", "the same: its default does not wait for the disk"),
            ("OneLog, `fsync`", "on the disk before the answer; appends that wait share a sync"),
            ("Apache Kafka, `fsync`", "the same: `flush.messages=1`"),
        ),
        "make bench-kafka",
    ),
    "amqp": About(
        "AMQP 0-9-1 beside RabbitMQ",
        "Persistent messages of 256 B with confirms, durable queues, acknowledgements of many at"
        " once. Both sides get the same declarations.",
        (
            ("OneLog", "`fsync`: on the disk before the confirm and before delivery"),
            ("RabbitMQ, classic queues", "written before the confirm, synced in batches; delivered"
             " before that"),
            ("RabbitMQ, quorum queues", "in the synced log of one node before the confirm"),
        ),
        "make bench-amqp",
    ),
    "views": About(
        "Views: every protocol reads what every other wrote",
        "The cost of consumers beside the same broker without them; bytes written beside RabbitMQ,"
        " which writes once for each queue.",
        (
            ("OneLog", "as each row names it; rows of the disk: `fsync`"),
            ("RabbitMQ", "persistent messages, durable queues, confirms"),
        ),
        "make bench-views",
    ),
    "spark": About(
        "Spark sources and sinks beside Spark's own",
        "One session of two cores. Sources and sinks of OneLog need no jar.",
        (
            ("OneLog", "`fsync`; a batch is written once, also across restarts"),
            ("Spark's Parquet", "files that nobody syncs"),
            ("Spark's Kafka source and sink", "the same OneLog broker; the sink may write a row"
             " twice"),
        ),
        "make bench-spark",
    ),
    "log": About(
        "The log itself",
        "Kernel, storage, topic index, broker, memory and chores, beside plain loops of system"
        " calls and beside the interpreted twin of the kernel.",
        (
            ("OneLog", "as each row names it; storage rows do not sync"),
            ("`os.write`, `readinto`", "no sync"),
            ("write + fdatasync", "a sync for each message"),
        ),
        "make bench-log",
    ),
    "operate": About(
        "Operating it safely",
        "Access rules, metrics, hostile connections, a million topics, backups, the admin API and"
        " the console, beside the same broker without them.",
        (("OneLog", "the default, `fsync`, unless a row names another"),),
        "make bench-operate",
    ),
    "object": About(
        "The log in an object store",
        "Tiers, tables and the engine `object` on SeaweedFS on the same machine, beside raw"
        " requests of the same sizes and threads, beside plain Parquet, and beside the same broker"
        " without them. A store far away is slower, and takes no processor from the broker.",
        (
            ("OneLog, engine `object`", "in the store before the answer"),
            ("OneLog, tiers and tables", "sealed segments; `os` before the answer"),
            ("raw requests", "the library obstore alone, by threads"),
        ),
        "make bench-object",
    ),
    "growth": About(
        "Growth",
        "What a message costs when there is ten times more of everything else. Flat is good; where"
        " a message goes to more readers, the cost is that of one delivery. CPU is that of a full"
        " load, times are those of a paced one; each is the least of three rounds. The brokers ran"
        " one after the other, not in turns.",
        (
            ("OneLog", "`os`: in the page cache before the answer and before delivery"),
            ("Mosquitto", "in memory only"),
            ("RabbitMQ", "classic queues, persistent messages: delivered before they are synced"),
            ("Apache Kafka", "in the page cache before the answer"),
        ),
        "make bench-growth",
    ),
    "cluster": About(
        "Three nodes",
        "Three replicas beside one, and beside three nodes of Apache Kafka; then what a producer"
        " sees while a node or etcd is lost. Producers ask for `acks=all`, and two of three"
        " replicas have to be in sync. All nodes share one machine.",
        (
            ("OneLog, `os`", "in the page cache of two nodes before the answer"),
            ("OneLog, `fsync`", "on the disk of two nodes before the answer"),
            ("Apache Kafka", "in the page cache of two nodes; with `fsync` the same as ours, by"
             " `flush.messages=1`"),
        ),
        "make bench-cluster",
    ),
    "lockstep": About(
        "CPU of a message beside an earlier commit",
        "No socket and no second process: bytes go in, bytes come out.",
        (("both", "the same level, `os`"),),
        "make bench-lockstep BASE=main",
    ),
    "against": About(
        "Whole messages beside an earlier commit",
        "What a second of the broker's CPU moves.",
        (("both", "the same level, which each row names"),),
        "make bench-against BASE=main",
    ),
    "lone": About(
        "A message that comes alone, beside an earlier commit",
        "The CPU of a message and the time until its answer.",
        (("both", "the same level, which each row names"),),
        "make bench-lone BASE=main",
    ),
}  # fmt: skip


HEAD = """\
# Benchmarks

<!-- Generated by `make bench-page` from docs/benchmarks/results. Do not edit. -->

OneLog beside the broker that each protocol's users know, on one machine, in turns, in the same
run. The page begins with what is worse. Figures of another machine are other figures: the ratios
are what carries over, and [each benchmark says how to repeat it](#repeat-it).

- *times* says how many times better OneLog is: `2x` is twice as good, `0.5x` half as good,
  whether more or less of the unit is better.
- A *bar* is what we promise ourselves. It is part of the benchmark, and may be missed.
- In pictures, red marks a case that is worse than its peer or misses its bar.
- A message that is lost or comes twice makes a case count as 0.
"""

REPEAT = """\
## Repeat it

`onelog bench mqtt`, `onelog bench kafka` and `onelog bench amqp` measure a broker from an
installed package, with no compiler and no peer: [Command line](guide/cli.md#measure-a-broker).

In a clone of the repository, `make bench-mqtt` (and each name below) measures both sides, installs
the peer where it can, and prints a table. `make bench-page` then writes this page anew: it takes
the results of the benchmarks that were repeated, and keeps the others. What each case does is in
`bench/README.md`.
"""
