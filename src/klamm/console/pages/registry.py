"""All pages, and the places of the rail."""

from __future__ import annotations

from klamm.console.pages import brokers, group, groups, metrics, overview, topics
from klamm.console.pages.topic import page as topic
from klamm.console.shell.frame import PageRoute, Place

PLACES = [
    Place(overview.PATH, "Overview", "overview"),
    Place(topics.PATH, "Topics", "topics"),
    Place(groups.PATH, "Groups", "groups"),
    Place(brokers.PATH, "Brokers", "brokers"),
    Place(metrics.PATH, "Metrics", "metrics"),
]

ROUTES = [
    PageRoute(overview.PATH, overview.PATH, overview.build),
    PageRoute(topics.PATH, topics.PATH, topics.build),
    PageRoute("/topics/{topic}", topics.PATH, topic.build),
    PageRoute("/topics/{topic}/{tab}", topics.PATH, topic.build),
    PageRoute(groups.PATH, groups.PATH, groups.build),
    PageRoute("/groups/{group}", groups.PATH, group.build),
    PageRoute(brokers.PATH, brokers.PATH, brokers.build),
    PageRoute(metrics.PATH, metrics.PATH, metrics.build),
]
