"""The keys of tables: where the history of streams with `tier.format` iceberg or delta is kept.

Rules: no key here costs anything unless a stream has such a tier. A stream may name a table and a
catalog of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from onelog.config.problems import Problem
from onelog.config.section import Section


class Lake(Section, frozen=True, kw_only=True):
    """Tables that streams become (`tier.format = iceberg | delta`). Needs `onelog[lake]`."""

    catalog: Annotated[
        str,
        Meta(
            description="Iceberg's catalog: sqlite:///FILE, postgresql://… or the http(s) address"
            " of a REST catalog; empty: a file `lake.db` in `data_dir`."
        ),
    ] = ""
    catalog_name: Annotated[
        str, Meta(description="Under which name the catalog keeps its tables.")
    ] = "onelog"
    catalog_options: Annotated[
        tuple[str, ...],
        Meta(
            description="More for the catalog, each as NAME=VALUE in the words of pyiceberg, such"
            " as token=… or credential=…"
        ),
    ] = ()
    warehouse: Annotated[
        str,
        Meta(description="Where files of tables lie; empty: `lake` below store.url."),
    ] = ""
    namespace: Annotated[
        str,
        Meta(min_length=1, description="Of tables whose name has no dot."),
    ] = "onelog"


def catalog_options(lake: Lake) -> dict[str, str]:
    """The options of the catalog by name."""
    return {
        name.strip(): value.strip()
        for name, _, value in (option.partition("=") for option in lake.catalog_options)
    }


def lake_problems(lake: Lake) -> Iterator[Problem]:
    """Errors in the keys of tables."""
    for option in lake.catalog_options:
        if "=" not in option:
            yield Problem(
                "lake.catalog_options",
                f"lake.catalog_options: {option!r} has no value: write NAME=VALUE",
            )
    if lake.catalog and "://" not in lake.catalog:
        yield Problem(
            "lake.catalog",
            f"lake.catalog = {lake.catalog!r} is no catalog: write sqlite:///FILE or the address of"
            " a REST catalog",
        )
