"""Who may ask the page: names it answers to, users and their passwords, and what is said about it. Pure functions."""

from __future__ import annotations

import base64
import binascii
import hmac
import ipaddress
import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from densecap_search.errors import ConfigError

AUTH_VARIABLE = "DENSECAP_AUTH"
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Access:
    """names: hosts that are answered to; any_address: also every address in numbers, which no foreign name server can
    choose. users: name → password; empty: nobody has to log in.
    """

    names: frozenset[str]
    any_address: bool = False
    users: Mapping[str, str] | None = None

    def serves(self, host: str) -> bool:
        """Whether a request's Host header names this page; its port does not count."""
        name = host_name(host)
        return name in self.names or (self.any_address and _is_address(name))

    def user_of(self, authorization: str) -> str | None:
        """The user whom an Authorization header (Basic) proves, or None."""
        kind, _, value = authorization.partition(" ")
        if kind.lower() != "basic" or not self.users:
            return None
        try:
            name, _, password = base64.b64decode(value, validate=True).decode("utf-8").partition(":")
        except (binascii.Error, UnicodeDecodeError, ValueError):
            return None
        expected = self.users.get(name, "")
        same = hmac.compare_digest(password.encode("utf-8", "surrogatepass"), expected.encode("utf-8", "surrogatepass"))
        return name if same and name in self.users else None


def make_access(host: str, allowed: Iterable[str] = (), users: Mapping[str, str] | None = None) -> Access:
    """What a server on this host answers to: itself, the names it was given, and addresses if it listens to all."""
    every = _is_address(host) and ipaddress.ip_address(host).is_unspecified
    own = {socket.gethostname().lower()} if every else set()
    names = LOOPBACK_NAMES | own | {host_name(host)} | {host_name(name) for name in allowed}
    return Access(frozenset(names), any_address=every, users=users or None)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server on this host."""
    return host_name(host) == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)


def host_name(host: str) -> str:
    """A Host header or an address → its name in small letters, without port, brackets and the dot at the end."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return (host if host.count(":") > 1 else host.partition(":")[0]).rstrip(".")


def read_users(auth_file: Path | None, auth: str | None) -> dict[str, str]:
    """Users from a file with USER:PASSWORD a line, else from DENSECAP_AUTH, else from one USER:PASSWORD; or none."""
    if auth_file is not None:
        try:
            lines = auth_file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read --auth-file {auth_file}: "
                              f"{getattr(error, 'strerror', None) or 'not UTF-8'}") from error
        given, where = [line for line in lines if line.strip() and not line.startswith("#")], str(auth_file)
        if not given:
            raise ConfigError(f"{where} names nobody; write USER:PASSWORD, one a line")
    elif value := os.environ.get(AUTH_VARIABLE):
        given, where = value.splitlines(), AUTH_VARIABLE
    else:
        given, where = [auth] if auth else [], "--auth"
    return dict(_user(line, where, number) for number, line in enumerate(given, start=1))


def check_open(host: str, users: Mapping[str, str], no_auth: bool) -> None:
    """Refuse to open the page to the network unless somebody must log in or it was said aloud that nobody has to."""
    if users and no_auth:
        raise ConfigError("a login and --no-auth contradict each other; give one of them")
    if not is_loopback(host) and not users and not no_auth:
        raise ConfigError(f"--host {host} opens the page to other machines: say who may log in with --auth-file FILE "
                          f"or {AUTH_VARIABLE}=USER:PASSWORD, or that everybody may with --no-auth")


def may_edit(host: str, allowed: Iterable[str], asked: bool | None) -> bool:
    """Whether what people teach is kept: as asked for, else where only this machine asks, not through a proxy."""
    return is_loopback(host) and not list(allowed) if asked is None else asked


def open_to(host: str, users: Mapping[str, str], paths: bool) -> str:
    """One sentence: who reaches the page, who may log in, and whether paths are shown."""
    who = "this machine only" if is_loopback(host) else f"everyone who reaches {host_name(host)} of this machine"
    login = f"after login as {' or '.join(sorted(users))}" if users else "without login"
    return f"open to {who}, {login}; paths of pictures are {'shown' if paths else 'shown from the archive on only'}"


def _user(line: str, where: str, number: int) -> tuple[str, str]:
    name, colon, password = line.strip().partition(":")
    if not (name and colon and password):
        raise ConfigError(f"{where}, line {number}: write USER:PASSWORD, both not empty")
    return name, password


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
