"""The logins that requests sends by itself: those of proxies, from the environment, and of ~/.netrc."""

import base64
import netrc
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tfbuild.errors import conceal

NETRC = ("~/.netrc", "~/_netrc")


def conceal_stored(environ: Mapping[str, str] = os.environ) -> None:
    """Hide these logins in everything that is printed: a server may repeat them in its answer."""
    for name, secret in (*_of_proxies(environ), *_of_netrc(environ)):
        encoded = (f"{name}:{secret}".encode(code, "replace") for code in ("utf-8", "latin-1"))
        conceal(name, secret, *(base64.b64encode(login).decode() for login in encoded))


def _of_proxies(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for variable, value in environ.items():
        if variable.lower().endswith("_proxy"):
            with suppress(ValueError):
                address = urlsplit(value if "://" in value else f"//{value}")
                if address.password:
                    yield unquote(address.username or ""), unquote(address.password)
                    yield address.username or "", address.password


def _of_netrc(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in (environ["NETRC"],) if environ.get("NETRC") else NETRC:
        with suppress(OSError, RuntimeError, ValueError, netrc.NetrcParseError):
            path = Path(name).expanduser()
            if path.is_file():
                for login, account, password in netrc.netrc(str(path)).hosts.values():
                    yield login or account or "", password or ""
