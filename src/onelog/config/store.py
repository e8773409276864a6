"""The keys of the object store: where it is, how it is asked, what of it is kept here, its prices.

Rules: no key here costs anything unless `store.url` is set. Prices are those of Amazon S3 Standard
in us-east-1; they change no decision, they are for `onelog store status`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Final

from msgspec import Meta

from onelog.config.problems import Problem
from onelog.config.section import Section

_MIB = 1024 * 1024
_DAY_MS = 24 * 3600 * 1000
RUN_BYTES_MAX: Final = 8 * _MIB
"""Bytes that a courier brings at once."""
SCHEMES: Final = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "https", "file")
"""How the URL of a store begins; `memory` is for tests."""


class StorePrices(Section, frozen=True, kw_only=True):
    """What the store costs, in dollars: only for what `onelog store status` prints."""

    put: Annotated[float, Meta(ge=0, description="A million writes of objects.")] = 5.0
    get: Annotated[float, Meta(ge=0, description="A million reads.")] = 0.4
    list: Annotated[float, Meta(ge=0, description="A million listings.")] = 5.0
    delete: Annotated[float, Meta(ge=0, description="A million deletions.")] = 0.0
    sent_gb: Annotated[float, Meta(ge=0, description="A gigabyte sent to the store.")] = 0.0
    received_gb: Annotated[float, Meta(ge=0, description="A gigabyte received from the store.")] = (
        0.0
    )


class Store(Section, frozen=True, kw_only=True):
    """The object store of this node: history of streams with a tier, and the engine `object`.

    Needs the extra `onelog[object]`, unless the store is a folder.
    """

    url: Annotated[
        str,
        Meta(
            description="Where the objects lie: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX,"
            " az://CONTAINER/PREFIX or file:///FOLDER; empty: no store. Each broker or"
            " cluster has a prefix of its own."
        ),
    ] = ""
    options: Annotated[
        tuple[str, ...],
        Meta(
            description="How it is reached, each as NAME=VALUE in the words of obstore, such as"
            " aws_region=eu-central-1 or aws_endpoint=http://127.0.0.1:8333. Keys do not belong"
            " here: credentials_file=FILE (as ~/.aws/credentials) and profile=NAME name a file that"
            " is read anew when it changes; without it the environment counts."
        ),
    ] = ()
    deadline_ms: Annotated[
        int,
        Meta(
            ge=100,
            le=600_000,
            description="How long a request may take, beside a second for each MB of its bytes.",
        ),
    ] = 30_000
    couriers: Annotated[
        int,
        Meta(
            ge=1,
            le=256,
            description="Threads that read from the store: cold reads at once. They become fewer"
            " while the store throttles.",
        ),
    ] = 8
    cache_dir: Annotated[
        str,
        Meta(
            description="Directory of what was read from the store; empty: `cold` in `data_dir`."
            " It is emptied at every start."
        ),
    ] = ""
    cache_bytes: Annotated[
        int,
        Meta(
            ge=4 * RUN_BYTES_MAX,
            description="Bytes that the cache may hold: at least 32 MiB for each courier.",
        ),
    ] = 1024 * _MIB
    index_bytes: Annotated[
        int,
        Meta(ge=_MIB, description="Memory for the indexes of objects that were read."),
    ] = 256 * _MIB
    upload_bytes_per_s: Annotated[
        int, Meta(ge=0, description="Bytes per second that tiers send to the store; 0: no bound.")
    ] = 0
    grace_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=7 * _DAY_MS,
            description="How long an object that retention took stays for readers that know it.",
        ),
    ] = 15 * 60_000
    prices: StorePrices = StorePrices()


def store_options(store: Store) -> dict[str, str]:
    """The options by name."""
    return {
        name.strip(): value.strip()
        for name, _, value in (option.partition("=") for option in store.options)
    }


def store_problems(store: Store) -> Iterator[Problem]:
    """Errors in the keys of the store that concern several of them."""
    scheme, found, _ = store.url.partition("://")
    if store.url and not (found and scheme in (*SCHEMES, "memory")):
        yield Problem(
            "store.url",
            f"store.url = {store.url!r} is no store: write s3://BUCKET/PREFIX, gs://BUCKET/PREFIX,"
            " az://CONTAINER/PREFIX or file:///FOLDER",
        )
    for option in store.options:
        if "=" not in option:
            yield Problem(
                "store.options",
                f"store.options: {option!r} has no value: write NAME=VALUE, such as"
                " aws_region=eu-central-1",
            )
    if store.couriers * RUN_BYTES_MAX * 4 > store.cache_bytes:
        least = store.couriers * RUN_BYTES_MAX * 4 // _MIB
        yield Problem(
            "store.cache_bytes",
            f"store.cache_bytes = {store.cache_bytes} is too small for {store.couriers} couriers,"
            f" which would push out each other's bytes: set it to {least} MiB at least, or"
            " store.couriers lower",
        )
