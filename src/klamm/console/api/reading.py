"""The endpoints that read: the same values that the pages show."""

from __future__ import annotations

import time
from collections.abc import Mapping

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from klamm.console.addresses import name_of
from klamm.console.api.asking import ApiError, answer, picture_of, query_of
from klamm.console.console import Console
from klamm.console.views import brokers as brokers_view
from klamm.console.views import groups as groups_view
from klamm.console.views import metrics as metrics_view
from klamm.console.views import overview as overview_view
from klamm.console.views import topics as topics_view
from klamm.console.views.finding import find
from klamm.console.watching.history import SHORT_RANGE_MS

MOST_RANGE_S = 6 * 3600


def add_reading(router: APIRouter, console: Console) -> None:
    """Add the endpoints. Names in paths are written as in the addresses of pages."""
    history = console.collector.history

    @router.get("/overview")
    async def overview() -> JSONResponse:
        """The health of the cluster, its rates, its busiest topics, the groups with the largest lag."""
        return answer(overview_view.overview(await picture_of(console), history, _now_ms()))

    @router.get("/topics")
    async def topics(request: Request) -> JSONResponse:
        """A page of the topics: search, sort (-rate), page, per_page, show=internal,unhealthy."""
        picture = await picture_of(console)
        return answer(topics_view.topics(picture, history, query_of(request, "name")))

    @router.get("/topics/{topic}")
    async def topic(topic: str) -> JSONResponse:
        """One topic, summed over its partitions."""
        picture = await picture_of(console)
        name = known_topic(picture.topics, topic)
        return answer(topics_view.topic_row(picture, history, picture.topics[name]))

    @router.get("/topics/{topic}/partitions")
    async def partitions(topic: str, request: Request) -> JSONResponse:
        """A page of a topic's partitions: leaders, replicas, offsets, sizes."""
        picture = await picture_of(console)
        name = known_topic(picture.topics, topic)
        return answer(topics_view.partitions(picture, name, query_of(request, "partition")))

    @router.get("/topics/{topic}/consumers")
    async def consumers(topic: str) -> JSONResponse:
        """The groups that have committed offsets of a topic."""
        picture = await picture_of(console)
        name = known_topic(picture.topics, topic)
        return answer(topics_view.consumers(picture, name))

    @router.get("/groups")
    async def groups(request: Request) -> JSONResponse:
        """A page of the groups: search, sort (-lag), page, per_page, show=active,behind."""
        picture = await picture_of(console)
        return answer(groups_view.groups(picture, history, query_of(request, "-lag")))

    @router.get("/groups/{group}")
    async def group(group: str) -> JSONResponse:
        """One group: its state, its lag, its members."""
        picture = await picture_of(console)
        found = picture.groups.get(name_of(group))
        if found is None:
            raise ApiError(404, f"there is no group {name_of(group)!r}")
        row = groups_view.group_row(history, found)
        return answer({"group": row, "members": groups_view.members(picture, found)})

    @router.get("/groups/{group}/offsets")
    async def offsets(group: str, request: Request) -> JSONResponse:
        """A page of a group's partitions: committed offsets, lag, owners."""
        picture = await picture_of(console)
        found = picture.groups.get(name_of(group))
        if found is None:
            raise ApiError(404, f"there is no group {name_of(group)!r}")
        return answer(groups_view.offsets(picture, found, query_of(request, "-lag")))

    @router.get("/groups/{group}/lag")
    async def lag(group: str, range_s: int = SHORT_RANGE_MS // 1000) -> JSONResponse:
        """A group's lag over time, as pairs of a time in milliseconds and the lag."""
        picture = await picture_of(console)
        if name_of(group) not in picture.groups:
            raise ApiError(404, f"there is no group {name_of(group)!r}")
        range_ms = min(max(range_s, 1), MOST_RANGE_S) * 1000
        return answer({"lag": groups_view.lag_points(picture, history, name_of(group), range_ms)})

    @router.get("/brokers")
    async def brokers() -> JSONResponse:
        """The brokers, with their log directories."""
        return answer(brokers_view.brokers(await picture_of(console), _now_ms()))

    @router.get("/metrics")
    async def metrics(range_s: int = SHORT_RANGE_MS // 1000) -> JSONResponse:
        """The charts of the page Metrics: lines of pairs of a time in milliseconds and a value."""
        range_ms = min(max(range_s, 1), MOST_RANGE_S) * 1000
        return answer(metrics_view.charts(await picture_of(console), history, range_ms))

    @router.get("/search")
    async def search(text: str = "") -> JSONResponse:
        """Topics, groups, brokers, pages and actions whose name has all words of the text."""
        return answer({"found": find(await picture_of(console), text, console.settings.is_read_only)})


def known_topic(topics: Mapping[str, object], given: str) -> str:
    name = name_of(given)
    if name not in topics:
        raise ApiError(404, f"there is no topic {name!r}")
    return name


def _now_ms() -> int:
    return int(time.time() * 1000)
