"""The endpoints that change something. All of them refuse when the console is read-only."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict

from klamm.client.admin.types import ConfigResource
from klamm.console.addresses import name_of
from klamm.console.api.asking import ApiError, answer
from klamm.console.changing import SettingsChange
from klamm.console.console import Console
from klamm.operating.configs import Setting
from klamm.operating.groups import By, Goal, Like, To
from klamm.operating.ranges import parse_place, present
from klamm.operating.seeking import SeekPlan, parse_choice


class _Body(BaseModel):
    """A field that is not known is a typing error."""

    model_config = ConfigDict(extra="forbid")


class NewTopicBody(_Body):
    """A topic to create; without partitions and replicas as the brokers say."""

    name: str
    partitions: int | None = None
    replicas: int | None = None
    settings: dict[str, str] = {}
    validate_only: bool = False


class PartitionsBody(_Body):
    """How many partitions a topic is to have."""

    total: int


class SettingsBody(_Body):
    """Settings to set, and to put back to their defaults."""

    set: dict[str, str] = {}
    unset: list[str] = []
    validate_only: bool = False


class SeekBody(_Body):
    """Where a group's offsets are to move: `to` a place, `by` a number, or to where the group `like` is."""

    to: str | None = None
    by: int | None = None
    like: str | None = None
    topics: list[str] = []
    dry_run: bool = False


def add_acting(router: APIRouter, console: Console) -> None:
    """Add the endpoints. Names in paths are written as in the addresses of pages."""
    changes = console.changes

    @router.post("/topics")
    async def create_topic(body: NewTopicBody) -> JSONResponse:
        """Create a topic; with validate_only ask the brokers whether they would."""
        created = await changes.create_topic(
            body.name, body.partitions, body.replicas, body.settings, validate_only=body.validate_only
        )
        value = {
            "topic": created.name,
            "partitions": created.partitions,
            "replicas": created.replication_factor,
            "created": not body.validate_only,
        }
        return answer(value, 200 if body.validate_only else 201)

    @router.delete("/topics/{topic}")
    async def delete_topic(topic: str) -> JSONResponse:
        """Delete a topic with all its records."""
        await changes.delete_topic(name_of(topic))
        return answer({"deleted": name_of(topic)})

    @router.post("/topics/{topic}/partitions")
    async def add_partitions(topic: str, body: PartitionsBody) -> JSONResponse:
        """Give a topic more partitions."""
        await changes.add_partitions(name_of(topic), body.total)
        return answer({"topic": name_of(topic), "partitions": body.total})

    @router.get("/topics/{topic}/configs")
    async def topic_settings(topic: str) -> JSONResponse:
        """The settings of a topic: values, where they are set, defaults."""
        found = await changes.settings(ConfigResource.topic(name_of(topic)))
        return answer([setting_value(one) for one in found])

    @router.patch("/topics/{topic}/configs")
    async def change_topic_settings(topic: str, body: SettingsBody) -> JSONResponse:
        """Change settings of a topic; answers with the change that undoes it."""
        change = SettingsChange(body.set, body.unset)
        resource = ConfigResource.topic(name_of(topic))
        undo = await changes.change_settings(resource, change, validate_only=body.validate_only)
        return answer({"changed": not body.validate_only, "undo": undo})

    @router.get("/brokers/{broker}/configs")
    async def broker_settings(broker: int) -> JSONResponse:
        """The settings of a broker."""
        found = await changes.settings(ConfigResource.broker(broker))
        return answer([setting_value(one) for one in found])

    @router.post("/groups/{group}/seek")
    async def seek(group: str, body: SeekBody) -> JSONResponse:
        """Move a group's committed offsets: `to` a place (start, end, 5, -10, -1h), `by`, or `like` another
        group. With dry_run only say what would be moved."""
        topics = [parse_choice(one) for one in body.topics]
        plan = await changes.plan_seek(name_of(group), _goal(body), topics)
        if not body.dry_run:
            await changes.seek(plan)
        return answer({"done": not body.dry_run, **plan_value(plan)})

    @router.delete("/groups/{group}")
    async def delete_group(group: str) -> JSONResponse:
        """Delete a group with its offsets. It must have no members."""
        await changes.delete_group(name_of(group))
        return answer({"deleted": name_of(group)})


def setting_value(setting: Setting) -> dict[str, Any]:
    return {
        "name": setting.name,
        "value": setting.value,
        "source": setting.source,
        "is_default": setting.is_default,
        "default": setting.default,
        "read_only": setting.read_only,
        "sensitive": setting.sensitive,
        "type": setting.type,
        "documentation": setting.documentation,
    }


def plan_value(plan: SeekPlan) -> dict[str, Any]:
    return {
        "group": plan.group,
        "read_again": plan.read_again,
        "passed_over": plan.passed_over,
        "moves": [
            {
                "topic": move.partition.topic,
                "partition": move.partition.partition,
                "old": None if move.old is None else move.old.offset,
                "new": None if move.new is None else move.new.offset,
                "read_again": move.read_again,
                "passed_over": move.passed_over,
                "note": move.note,
            }
            for move in plan.moves
        ],
    }


def _goal(body: SeekBody) -> Goal:
    given = [one for one in (body.to, body.by, body.like) if one is not None]
    if len(given) != 1:
        raise ApiError(400, "say where to: exactly one of `to`, `by` and `like`")
    if body.by is not None:
        return By(body.by)
    return To(parse_place(body.to, present())) if body.to is not None else Like(str(body.like))
