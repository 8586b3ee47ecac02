"""The addresses of pages. Names of topics and groups are a segment of the path, whatever is in them.

A character that a segment cannot hold is written as ~ and two hexadecimal digits per byte: browsers and
servers decode percent signs at different places, and a group may be called "a/b".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote, urlencode

_ESCAPED = re.compile(r"(?:~[0-9A-F]{2})+")


def segment(name: str) -> str:
    """A name as a segment of a path. "." and ".." would be taken for folders."""
    if name in (".", ".."):
        return name.replace(".", "~2E")
    return quote(name, safe="").replace("~", "~7E").replace("%", "~")


def name_of(text: str) -> str:
    """The name that `segment` has written."""
    return _ESCAPED.sub(lambda found: bytes.fromhex(found[0].replace("~", "")).decode(errors="replace"), text)


def topic_url(name: str, tab: str = "") -> str:
    return f"/topics/{segment(name)}" + (f"/{tab}" if tab else "")


def group_url(name: str) -> str:
    return f"/groups/{segment(name)}"


def pipeline_url(key: str, tab: str = "") -> str:
    return f"/pipelines/{segment(key)}" + (f"/{tab}" if tab else "")


def message_url(topic: str, partition: int, offset: int) -> str:
    """A record of a topic, opened in the list of messages."""
    place = f"partitions={partition}&range={offset}:{offset + 1}&record={partition}.{offset}"
    return f"{topic_url(topic, 'messages')}?{place}"


def broker_url(broker: int) -> str:
    return f"/brokers#{broker}"


def with_query(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path
