"""How the lake process reaches the files of tables: as the store is reached, with the keys of now.

Rules: this module knows no library of tables, because readers need it, too (`brought_files.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from onelog.base.errors import ColdUnavailable, ConfigError
from onelog.lake.storage import S3_SCHEMES, Storage
from onelog.lake.store_files import CLOUD_STARTS
from onelog.objects.clouds import endpoint_of
from onelog.objects.credentials import Credentials, State

_WORDS: Final = {
    "s3.endpoint": ("aws_endpoint", "aws_endpoint_url", "endpoint", "endpoint_url"),
    "s3.region": ("aws_region", "aws_default_region", "region"),
    "s3.access-key-id": ("aws_access_key_id", "access_key_id"),
    "s3.secret-access-key": ("aws_secret_access_key", "secret_access_key"),
    "s3.session-token": ("aws_session_token", "token"),
    "s3.credentials-file": ("credentials_file",),
    "s3.profile-name": ("profile",),
}
"""The words of tables, and those of stores for the same."""


class StorageNow:
    """How the files of tables are reached: as the store is, with the credentials of now."""

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        self._given = {
            word: options[name]
            for word, names in _WORDS.items()
            for name in names
            if name in options
        }
        self._url = url
        self._is_s3 = url.startswith(S3_SCHEMES)
        self._credentials = Credentials(options)
        self._found: tuple[State, Storage] | None = None

    def __call__(self) -> Storage:
        """Read the credentials again if they changed. Raises ColdUnavailable."""
        if not self._is_s3 and not self._url.startswith(CLOUD_STARTS):
            return Storage()
        state, found = self._credentials.state(), self._found
        if found is None or found[0] != state:
            try:
                found = state, Storage.of(self._given) if self._is_s3 else self._of_cloud()
            except ConfigError as error:  # a file that somebody is about to write anew
                raise ColdUnavailable(str(error), "refused") from error
            self._found = found
        return found[1]

    def _of_cloud(self) -> Storage:
        words = self._credentials.words()
        if endpoint_of(self._url, words).startswith("http://"):
            words.setdefault("allow_http", "true")
        return Storage(words=tuple(sorted(words.items())))
