"""Whether a request comes from a page of this console, and is meant for it. Without IO.

A page of another origin can make a browser send requests here, with the cookie or from inside a network. A
browser says where such a request comes from: in Origin for all web sockets and all that may change something,
and in Sec-Fetch-Site. A page can also have its own name point to this machine's address. Then Origin and Host
agree, and only the name in Host tells that it is not the console's.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_FROM_ELSEWHERE = frozenset({"cross-site", "same-site"})


def why_refused(
    headers: Mapping[str, str], *, names: frozenset[str] | None, opens_a_page: bool
) -> str | None:
    """Why a request is refused; None if it is not.

    `names` are those that Host may have, None means any. `opens_a_page`: it is a GET or HEAD, which a link on
    another page may make.
    """
    host = headers.get("host", "")
    if names is not None and host_name(host) not in names:
        return f"{host_name(host) or 'no name'} is not a name of this console"
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
        return f"the request comes from another origin: {origin}"
    is_link = opens_a_page and headers.get("sec-fetch-mode") == "navigate"
    if headers.get("sec-fetch-site") in _FROM_ELSEWHERE and not is_link:
        return "the request comes from a page of another origin"
    return None


def host_name(host: str) -> str:
    """The name in a Host header, without its port and the brackets of IPv6."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""
