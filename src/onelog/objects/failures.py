"""What a store says when it fails, in our words: what happened, to what, and what to do.

Rules: libraries have one error for nearly everything, so its text decides. A bucket that is missing
is never an object that is missing. Two clocks that differ are named with their difference. No line
contains a secret.
"""

from __future__ import annotations

import datetime
import email.utils
import http.client
import re
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from onelog.base.errors import ColdUnavailable, NotFound, OnelogError, StoreTrouble
from onelog.objects.clouds import cloud_of

_CLOCK_S: Final = 5.0
"""How long a store may take to say what time it is."""


class StoreFailure(NamedTuple):
    """How stores say it, and how we do."""

    pattern: re.Pattern[str]
    reason: StoreTrouble
    line: str


FAILURES: Final = (
    StoreFailure(
        re.compile(
            r"NoSuchBucket|ContainerNotFound|The specified (?:bucket|container) does not exist"
        ),
        "bucket",
        "{where} has no bucket {bucket}: make it, or check the address {url}",
    ),
    StoreFailure(
        re.compile(r"RequestTimeTooSkewed|RequestExpired|RequestHasExpired"),
        "clock",
        "{where} refuses our clock{skew}: set the clocks right (NTP), then it goes on by itself",
    ),
    StoreFailure(
        re.compile(r"no (?:valid )?credential|NoCredentials|169\.254\.169\.254", re.IGNORECASE),
        "refused",
        "credentials for {where} are missing: set {keys} in the environment of `onelog serve`",
    ),
    StoreFailure(
        re.compile(
            r"AccessDenied|InvalidAccessKeyId|SignatureDoesNotMatch|ExpiredToken|InvalidToken"
            r"|AuthenticationFailed|AuthorizationFailure|AccountProblem|status 40[13]|40[13] \w"
        ),
        "refused",
        "{where} does not let this process into {url} ({code}): check the key"
        " (store.options, its credentials_file, or the environment of `onelog serve`), and let it"
        " read, write, list and delete in bucket {bucket}",
    ),
    StoreFailure(
        re.compile(r"PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint"),
        "bucket",
        "bucket {bucket} is in another region than {where} was asked for: set aws_region in"
        " store.options",
    ),
    StoreFailure(
        re.compile(
            r"SlowDown|ServerBusy|TooManyRequests|ThrottlingException|\b503\b|\b429\b"
            r"|Service Unavailable"
        ),
        "throttled",
        "{where} asks for fewer requests (503) for {url}: they are made more slowly; if it lasts,"
        " ask for more, or spread the load",
    ),
)
_CERTIFICATE: Final = re.compile(r"InvalidCertificate\(\s*(\w+)")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")


def explained(url: str, endpoint: str, name: str, error: Exception) -> OnelogError:
    """The error in our words. `endpoint` is empty for the cloud's own."""
    text, _, inner = str(error).partition("\n\nDebug source")
    where = endpoint or "the store"
    bucket = url.partition("://")[2].partition("/")[0]
    cloud = cloud_of(url)
    for failure in FAILURES:
        if failure.pattern.search(text):
            code = _CODE.search(text)
            skew = _difference(endpoint or cloud.clock) if failure.reason == "clock" else ""
            return ColdUnavailable(
                failure.line.format(
                    url=url,
                    where=where,
                    bucket=bucket,
                    code=code[1] if code else "403",
                    skew=skew,
                    keys=cloud.keys,
                ),
                failure.reason,
            )
    if distrust := _CERTIFICATE.search(inner):
        return ColdUnavailable(
            f"the certificate of {where} is not trusted ({distrust[1]}): set root_certificate in"
            " store.options to the file of the authority that issued it (PEM), or check that the"
            " address has the name that the certificate is for",
            "refused",
        )
    if isinstance(error, FileNotFoundError):
        return NotFound(f"{url}: {name} is missing")
    return ColdUnavailable(
        f"{url}: {name} could not be reached ({_first_line(text)}): check that the store runs, its"
        f" address ({cloud.endpoints[0]} in store.options) and the network"
    )


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:500]


def _difference(endpoint: str) -> str:
    """How far the clock of the store is from ours, by the `Date` of an answer; empty: unknown."""
    told = store_date(endpoint)
    if told is None:
        return ""
    ahead_s = (datetime.datetime.now(datetime.UTC) - told).total_seconds()
    return (
        f", which is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} its own"
        f" ({told:%Y-%m-%d %H:%M:%S} UTC)"
    )


def store_date(endpoint: str) -> datetime.datetime | None:
    """The clock of a store, by the `Date` of any answer; None: it does not say."""
    parts = urlsplit(endpoint)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_CLOCK_S)
    try:
        connection.request("HEAD", "/")
        date = connection.getresponse().getheader("Date")
        found = email.utils.parsedate_to_datetime(date) if date else None
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return found
