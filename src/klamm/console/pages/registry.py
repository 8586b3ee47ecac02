"""All pages, and the places of the rail."""

from __future__ import annotations

from klamm.console.pages import group, groups, overview, topics
from klamm.console.pages.topic import page as topic
from klamm.console.shell.frame import PageRoute, Place

PLACES = [
    Place(overview.PATH, "Overview", "overview"),
    Place(topics.PATH, "Topics", "topics"),
    Place(groups.PATH, "Groups", "groups"),
]

ROUTES = [
    PageRoute(overview.PATH, overview.PATH, overview.build),
    PageRoute(topics.PATH, topics.PATH, topics.build),
    PageRoute("/topics/{topic}", topics.PATH, topic.build),
    PageRoute("/topics/{topic}/{tab}", topics.PATH, topic.build),
    PageRoute(groups.PATH, groups.PATH, groups.build),
    PageRoute("/groups/{group}", groups.PATH, group.build),
]
