"""`onelog login|logout`: a login at a server elsewhere, saved for the commands that follow.

Rules: a password or token is asked for without echo, or read from standard input. What is saved is
a session, which ends by itself, or the token that was given. A session that is over is replaced by
another login; nothing is renewed behind the user's back.
"""

from __future__ import annotations

import getpass
import http.cookies
import sys
from pathlib import Path
from typing import Annotated

import msgspec
from cyclopts import App, Parameter

from onelog.base.errors import ConfigError, InvalidRequest, OnelogError
from onelog.cli import render
from onelog.cli.client import API, AdminClient, Target
from onelog.cli.places import HERE, Place, connected
from onelog.cli.saved_logins import SavedLogin, find_login, forget_login, logins_file, save_login
from onelog.cli.tables import moment

Flag = Parameter(negative=(), show_default=False)


def add_logins(app: App) -> None:
    """Add the commands to the tree."""
    app.command(login)
    app.command(logout)


def login(
    *,
    user: Annotated[str, Parameter(name=["--user", "-u"], help="Name of the user.")] = "",
    password_stdin: Annotated[
        bool, Flag, Parameter(help="Read the password from the first line of standard input.")
    ] = False,
    token_stdin: Annotated[
        bool, Flag, Parameter(help="Save a token, from the first line of standard input.")
    ] = False,
    place: Place = HERE,
) -> None:
    """Log in at a server, as in: onelog login --url https://broker.example:8080 --user alice.

    Commands with the same --url, or with ONELOG_URL set to it, then need nothing else.
    """
    url = place.named_url
    if not url:
        raise ConfigError(
            "which server? onelog login --url https://host:8080. Commands on the machine of the"
            " server need no login, when its own system user runs them"
        )
    place.check_secrecy(url)
    ca_file = str(Path(place.ca_file).resolve()) if place.ca_file else ""
    if token_stdin:
        saved = SavedLogin(token=_first_line("--token-stdin"), ca_file=ca_file)
    else:
        saved = _session(url, ca_file, user, from_stdin=password_stdin)
    client = AdminClient(
        Target(url=url, token=saved.token, session=saved.session, csrf=saved.csrf, ca_file=ca_file)
    )
    try:
        who = client.get("/session")
    finally:
        client.close()
    save_login(url, msgspec.structs.replace(saved, name=who["name"]))
    until = f" until {moment(who['expires_ms'])}" if who.get("expires_ms") else ""
    render.say(f"logged in at {url} as {who['name']}, role {who['role']}{until}")


def logout(*, place: Place = HERE) -> None:
    """End the login at a server, and forget it."""
    url = place.named_url
    if not url:
        raise ConfigError("which server? onelog logout --url https://host:8080")
    saved = find_login(url)
    if saved is None:
        render.say(f"there is no login at {url} in {logins_file()}")
        return
    try:
        if saved.session:
            with connected(place) as client:
                client.call("POST", "/logout")
    except OnelogError as error:
        render.print_warning(f"the session could not be ended ({error}); it ends by itself")
    forget_login(url)
    render.say(f"logged out at {url}")


def _session(url: str, ca_file: str, user: str, *, from_stdin: bool) -> SavedLogin:
    name = user or _ask_user()
    password = _first_line("--password-stdin") if from_stdin else _ask_password(name, url)
    client = AdminClient(Target(url=url, ca_file=ca_file))
    try:
        body = {"user": name, "password": password}
        data, headers = client.exchange("POST", f"{API}/login", body)
    finally:
        client.close()
    jar = http.cookies.SimpleCookie(headers.get("set-cookie", ""))
    return SavedLogin(
        session=next((morsel.value for morsel in jar.values()), ""),
        csrf=msgspec.json.decode(data).get("csrf") or "",
        ca_file=ca_file,
    )


def _first_line(option: str) -> str:
    line = sys.stdin.readline().removesuffix("\n").removesuffix("\r")
    if not line:
        raise ConfigError(f"{option}: standard input is empty")
    return line


def _ask_user() -> str:
    if not sys.stdin.isatty():
        raise ConfigError("who logs in? name the user with --user NAME")
    render.ERRORS.print("User: ", end="")
    return sys.stdin.readline().strip()


def _ask_password(name: str, url: str) -> str:
    if not sys.stdin.isatty():
        raise ConfigError(
            "there is no terminal to ask for the password: use --password-stdin < FILE"
        )
    try:
        return getpass.getpass(f"Password of {name} at {url}: ")
    except (EOFError, KeyboardInterrupt):
        raise InvalidRequest("no password was given; nothing was changed") from None
