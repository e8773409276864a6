"""What clouds call the same things: the address of a store, and what lets a process in.

Rules: the scheme of a URL says which cloud it is; `https://` says it by its host. What an option
says of the address counts before the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit


class Cloud(NamedTuple):
    """The words of a cloud."""

    schemes: tuple[str, ...]
    hosts: tuple[str, ...]
    """How hosts end in URLs that begin with https."""
    endpoints: tuple[str, ...]
    """Options that say where a store is that is not the cloud's own; messages tell the first."""
    variables: tuple[str, ...]
    """The same in the environment."""
    clock: str
    """An address of the cloud's own that says what time it is."""
    keys: str
    """What to set where credentials are missing."""


S3: Final = Cloud(
    ("s3", "s3a"),
    (".amazonaws.com",),
    ("aws_endpoint", "aws_endpoint_url", "endpoint", "endpoint_url"),
    ("AWS_ENDPOINT_URL",),
    "https://s3.amazonaws.com",
    "credentials_file in store.options, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
)
AZURE: Final = Cloud(
    ("az", "azure", "adl", "abfs", "abfss"),
    (".windows.net", ".fabric.microsoft.com"),
    ("azure_storage_endpoint", "azure_endpoint", "endpoint"),
    ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    "https://azure.microsoft.com",
    "azure_storage_account_name in store.options, and AZURE_STORAGE_ACCOUNT_KEY",
)
GOOGLE: Final = Cloud(
    ("gs",),
    (),
    ("google_base_url", "base_url"),
    ("GOOGLE_BASE_URL",),
    "https://storage.googleapis.com",
    "google_service_account=FILE in store.options, or GOOGLE_APPLICATION_CREDENTIALS",
)
CLOUDS: Final = (S3, AZURE, GOOGLE)


def cloud_of(url: str) -> Cloud:
    """The cloud of a URL; S3 where nothing says it."""
    scheme, _, _ = url.partition("://")
    host = urlsplit(url).hostname or "" if scheme == "https" else ""
    for cloud in CLOUDS:
        if scheme in cloud.schemes or (cloud.hosts and host.endswith(cloud.hosts)):
            return cloud
    return S3


def endpoint_of(url: str, options: Mapping[str, str]) -> str:
    """The address of a store that is not the cloud's own; empty: it is."""
    cloud = cloud_of(url)
    told = [options[name] for name in cloud.endpoints if name in options]
    told += [os.environ[name] for name in cloud.variables if name in os.environ]
    return next((address for address in told if address), "")
