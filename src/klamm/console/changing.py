"""What the console changes in a cluster. Pages and the JSON API both change it here, and only here.

With --read-only each change is refused, whoever asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from klamm.client.admin.admin import Admin
from klamm.client.admin.types import ConfigResource, CreatedTopic
from klamm.client.results import CommittedOffset, TopicPartition
from klamm.console.watching.collector import Collector
from klamm.operating import configs, groups
from klamm.operating.configs import Setting
from klamm.operating.errors import CannotDo
from klamm.operating.groups import Goal, Saved
from klamm.operating.seeking import SeekPlan, TopicChoice


class ReadOnly(CannotDo):
    """The console was started with --read-only."""

    def __init__(self) -> None:
        super().__init__("this console is read-only", advice="Start one without --read-only")


@dataclass(frozen=True)
class SettingsChange:
    """Settings to set, and settings to put back to their defaults."""

    set: Mapping[str, str]
    unset: Sequence[str] = ()


class Changes:
    """The changes, by an admin that connects when it is needed first."""

    def __init__(
        self, bootstrap: str, config: Mapping[str, str], collector: Collector, *, is_read_only: bool
    ) -> None:
        self.is_read_only = is_read_only
        self.admin = Admin(bootstrap, config=dict(config))
        self._collector = collector

    async def close(self) -> None:
        await self.admin.close(1.0)

    def check_allowed(self) -> None:
        """Raise ReadOnly if nothing may be changed."""
        if self.is_read_only:
            raise ReadOnly

    # ---- topics

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replicas: int | None = None,
        settings: Mapping[str, str] | None = None,
        *,
        validate_only: bool = False,
    ) -> CreatedTopic:
        self.check_allowed()
        created = await self.admin.create_topic(
            name, partitions, replicas, configs=settings or {}, validate_only=validate_only
        )
        if not validate_only:
            await self._collector.look_again()
        return created

    async def delete_topic(self, name: str) -> None:
        self.check_allowed()
        await self.admin.delete_topic(name)
        await self._collector.look_again()

    async def add_partitions(self, topic: str, total: int) -> None:
        self.check_allowed()
        await self.admin.create_partitions(topic, total)
        await self._collector.look_again()

    # ---- settings

    async def settings(self, resource: ConfigResource) -> list[Setting]:
        return await configs.settings_of(self.admin, [resource])

    async def change_settings(
        self, resource: ConfigResource, change: SettingsChange, *, validate_only: bool = False
    ) -> SettingsChange:
        """Change settings; returns the change that undoes it."""
        self.check_allowed()
        touched = {*change.set, *change.unset}
        before = [one for one in await self.settings(resource) if one.name in touched]
        await configs.change(self.admin, [resource], change.set, change.unset, validate_only=validate_only)
        own = {one.name: one.value or "" for one in before if one.source in ("topic", "broker", "group")}
        return SettingsChange(own, sorted(touched - set(own)))

    # ---- groups

    async def plan_seek(self, group: str, goal: Goal, topics: Sequence[TopicChoice] = ()) -> SeekPlan:
        return await groups.plan_seek(self.admin, group, goal, topics)

    async def seek(self, plan: SeekPlan) -> Goal:
        """Carry a plan out; returns the goal that undoes it."""
        self.check_allowed()
        before: dict[TopicPartition, CommittedOffset | None] = {
            move.partition: move.old for move in plan.changes
        }
        await groups.seek(self.admin, plan)
        await self._collector.look_again()
        return Saved(before, "what was before")

    async def delete_group(self, group: str) -> None:
        self.check_allowed()
        await self.admin.delete_group(group)
        await self._collector.look_again()
