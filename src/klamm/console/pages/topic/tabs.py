"""The tabs of a topic's page, in their order. The first is shown at the topic's own address."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nicegui.page_arguments import PageArguments

from klamm.console.pages.topic import configuration, consumers, messages, partitions, pipelines
from klamm.console.shell.visit import Visit


@dataclass(frozen=True)
class Tab:
    """A tab: the last segment of its address, its name, and what builds it for a topic."""

    key: str
    name: str
    build: Callable[[Visit, str, PageArguments], None]


TABS = (
    Tab(messages.TAB, "Messages", messages.build),
    Tab(partitions.TAB, "Partitions", partitions.build),
    Tab(consumers.TAB, "Consumers", consumers.build),
    Tab(configuration.TAB, "Configuration", configuration.build),
    Tab(pipelines.TAB, "Pipelines", pipelines.build),
)
