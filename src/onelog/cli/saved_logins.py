"""What `onelog login` saved: one login for each URL, in a file that only this user can read.

Rules: the file is `onelog/logins.json` in `$XDG_CONFIG_HOME`, else in `~/.config`, with mode 0600.
It is written whole and then renamed. A file that others can read is refused, because its secrets
are known then.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

import msgspec

from onelog.base.errors import ConfigError

_OTHERS: Final = 0o077


class SavedLogin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token, or the session of a user."""

    name: str = ""
    token: str = ""
    session: str = ""
    csrf: str = ""
    ca_file: str = ""


def logins_file() -> Path:
    """Where logins are saved."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "onelog" / "logins.json"


def find_login(url: str) -> SavedLogin | None:
    """The login for a URL, if one was saved."""
    return _read().get(url)


def save_login(url: str, login: SavedLogin) -> None:
    """Save a login; it replaces the one before."""
    _write({**_read(), url: login})


def forget_login(url: str) -> bool:
    """Forget the login for a URL; whether there was one."""
    rows = _read()
    found = rows.pop(url, None) is not None
    if found:
        _write(rows)
    return found


def _read() -> dict[str, SavedLogin]:
    file = logins_file()
    try:
        if file.stat().st_mode & _OTHERS:
            raise ConfigError(
                f"others can read {file}: run `chmod 600 {file}`, and log in again if they did"
            )
        return msgspec.json.decode(file.read_bytes(), type=dict[str, SavedLogin])
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{file} is damaged ({error}): delete it and log in again") from None


def _write(rows: dict[str, SavedLogin]) -> None:
    file = logins_file()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=file.parent)  # its mode is 0600
        with os.fdopen(handle, "wb") as out:
            out.write(msgspec.json.encode(rows))
        Path(name).replace(file)
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from error
