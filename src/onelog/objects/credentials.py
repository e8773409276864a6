"""Who we are to a store: options, a file of credentials, the environment; and whether it changed.

Rules: options count before the file, and the file before the environment; key and secret come from
the same source. A file and the environment are looked at again while the broker runs, so that keys
may be changed without a restart. No message contains a value.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from onelog.base.errors import ColdUnavailable

FILE: Final = "credentials_file"
PROFILE: Final = "profile"
ROOTS: Final = "root_certificate"
"""Certificates to trust beside those of the system: a file, or what would stand in it (PEM)."""
_PEM: Final = "-----BEGIN"
KEYS: Final = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
_SHORT: Final = {"access_key_id": KEYS[0], "secret_access_key": KEYS[1], "token": KEYS[2]}
_ENVIRONMENT: Final = ("AWS_", "GOOGLE_", "AZURE_")
_FILES: Final = (
    FILE,
    ROOTS,
    "google_service_account",
    "google_service_account_path",
    "google_application_credentials",
    "aws_web_identity_token_file",
    "azure_federated_token_file",
)
"""Options whose values are files that a library reads when a store is opened."""

State = tuple[object, ...]


class Credentials:
    """The credentials of one store."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = {_SHORT.get(name, name): value for name, value in options.items()}
        file = self._options.get(FILE, "")
        if not file and KEYS[0] not in self._options and KEYS[0].upper() not in os.environ:
            file = os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "")
        self._file = Path(file).expanduser() if file else None
        self._profile = self._options.get(PROFILE, os.environ.get("AWS_PROFILE", "default"))

    def state(self) -> State:
        """Another value than last time: something changed, and the store is to be opened anew."""
        environment = [
            (name, value) for name, value in os.environ.items() if name.startswith(_ENVIRONMENT)
        ]
        files = [self._options[name] for name in _FILES if name in self._options]
        files += [value for name, value in environment if name.endswith(("_FILE", "_CREDENTIALS"))]
        return (tuple(sorted(environment)), tuple(_stamp(file) for file in files))

    def words(self) -> dict[str, str]:
        """The options of the store with what the file says. Raises ColdUnavailable."""
        words = {
            name: value for name, value in self._options.items() if name not in (FILE, PROFILE)
        }
        if self._file is not None and KEYS[0] not in words:
            words |= self._from_file(self._file)
        if _PEM not in words.get(ROOTS, _PEM):
            words[ROOTS] = _certificates(Path(words[ROOTS]).expanduser())
        return words

    def _from_file(self, file: Path) -> dict[str, str]:
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read_string(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise ColdUnavailable(
                f"the credentials of the store cannot be read: {file}: {error.strerror}", "refused"
            ) from None
        except (configparser.Error, UnicodeDecodeError):  # its message may quote a line of the file
            raise ColdUnavailable(
                f"{file} is not in the form of ~/.aws/credentials: [{self._profile}], then lines of"
                " aws_access_key_id = …",
                "refused",
            ) from None
        if not parser.has_section(self._profile):
            raise ColdUnavailable(
                f"{file} has no part [{self._profile}], only"
                f" {', '.join(parser.sections()) or 'none'}",
                "refused",
            )
        found = {key: parser.get(self._profile, key, fallback="") for key in KEYS}
        return {key: value for key, value in found.items() if value}


def _certificates(file: Path) -> str:
    try:
        text = file.read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no PEM file"
        raise ColdUnavailable(
            f"{ROOTS} in store.options cannot be read: {file}: {why}", "refused"
        ) from None
    if _PEM not in text:
        raise ColdUnavailable(
            f"{ROOTS} in store.options: {file} holds no certificate in PEM form ({_PEM} …)",
            "refused",
        )
    return text


def _stamp(file: str) -> tuple[int, int, int]:
    """Changes whenever somebody writes or replaces the file."""
    try:
        status = Path(file).expanduser().stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_ino, status.st_mtime_ns, status.st_size)
