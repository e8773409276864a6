"""The words of a store that a broker tells its clients: where the store is, never who may use it.

Rules: only names of `SHOWN` and addresses are told; an option that nobody thought of stays here. An
address that holds a user or a password is not told. What the environment of the broker says of the
address counts where no option does, as it does for the broker itself.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from onelog.objects.clouds import cloud_of

SHOWN: Final = {
    "aws_region": "aws_region",
    "region": "aws_region",
    "aws_default_region": "aws_region",
    "default_region": "aws_region",
    "aws_virtual_hosted_style_request": "aws_virtual_hosted_style_request",
    "virtual_hosted_style_request": "aws_virtual_hosted_style_request",
    "aws_request_payer": "aws_request_payer",
    "aws_s3_express": "aws_s3_express",
    "allow_http": "allow_http",
    "azure_storage_account_name": "azure_storage_account_name",
}
"""Options of a store that say how it is spoken to, and the one name of each; `clouds.py` has those
that are addresses."""
_ENVIRONMENT: Final = {
    "AWS_ENDPOINT_URL": "aws_endpoint",
    "AWS_REGION": "aws_region",
    "AWS_DEFAULT_REGION": "aws_region",
}


class StoreWords(msgspec.Struct, frozen=True, kw_only=True):
    """Where a store is."""

    url: str
    options: dict[str, str] = {}
    """In the words of obstore, without anything secret."""


def shown_words(url: str, options: Mapping[str, str]) -> StoreWords:
    """The words of a store for clients."""
    found: dict[str, str] = {}
    addresses = cloud_of(url).endpoints
    names = SHOWN | dict.fromkeys(addresses, addresses[0])
    for name, value in options.items():
        if name in names:
            found.setdefault(names[name], value)
    if url.startswith(("s3:", "s3a:")):
        for variable, name in _ENVIRONMENT.items():
            if os.environ.get(variable):
                found.setdefault(name, os.environ[variable])
    told = {name: value for name, value in found.items() if not _has_login(value)}
    return StoreWords(url=url, options=told)


def _has_login(value: str) -> bool:
    return "://" in value and "@" in urlsplit(value).netloc
