"""The messages of a topic: the list, the record beside it, search, live tail, export, producing.

The component in the browser asks the JSON API itself, so that long searches and tails are streams of their
own, and a page that is left ends them. All that it shows is in its URL.
"""

from __future__ import annotations

from nicegui.element import Element
from nicegui.page_arguments import PageArguments

from klamm.console.addresses import segment, topic_url
from klamm.console.shell.visit import Visit

TAB = "messages"
MOST_PARTITIONS_LISTED = 200
"""Of a topic with more, numbers of partitions are typed."""

PARAMETERS = (
    "range",
    "partitions",
    "order",
    "filter",
    "at",
    "format",
    "schema",
    "record",
    "live",
    "committed",
)


class MessageList(Element, component="klamm_messages.js"):
    """The list of messages, with all that belongs to it."""

    def __init__(self, visit: Visit, topic: str, arguments: PageArguments) -> None:
        super().__init__()
        given = arguments.query_parameters
        self._props["topic"] = topic
        self._props["api"] = f"/api/v1/topics/{segment(topic)}/messages"
        self._props["page"] = topic_url(topic, TAB)
        self._props["partitions"] = min(visit.picture.topics[topic].partitions, MOST_PARTITIONS_LISTED + 1)
        self._props["mayProduce"] = not visit.console.settings.is_read_only
        self._props["given"] = {name: given[name] for name in PARAMETERS if name in given}


def build(visit: Visit, topic: str, arguments: PageArguments) -> None:
    MessageList(visit, topic, arguments)
