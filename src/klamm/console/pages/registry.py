"""All pages, and the places of the rail."""

from __future__ import annotations

from klamm.console.pages import brokers, group, groups, metrics, overview, pipelines, topics
from klamm.console.pages.pipeline import page as pipeline
from klamm.console.pages.topic import page as topic
from klamm.console.shell.frame import PageRoute, Place

PLACES = [
    Place(overview.PATH, "Overview", "overview"),
    Place(topics.PATH, "Topics", "topics"),
    Place(groups.PATH, "Groups", "groups"),
    Place(pipelines.PATH, "Pipelines", "pipelines"),
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
    PageRoute(pipelines.PATH, pipelines.PATH, pipelines.build),
    PageRoute("/pipelines/{pipeline}", pipelines.PATH, pipeline.build),
    PageRoute("/pipelines/{pipeline}/{tab}", pipelines.PATH, pipeline.build),
    PageRoute(brokers.PATH, brokers.PATH, brokers.build),
    PageRoute(metrics.PATH, metrics.PATH, metrics.build),
]
