"""`klamm.aio.Admin`: administers a cluster. `klamm.Admin` is the same for plain threads.

The methods here check their arguments. The requests are made in the other modules of this folder, one per
noun. For calls that ask every broker (`list_groups`, `describe_log_dirs`) the items are brokers, as they are
topics for others.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping, Sequence
from typing import Unpack

from klamm.client.admin import cluster, replicas, storage
from klamm.client.admin import configs as configs_module
from klamm.client.admin import groups as groups_module
from klamm.client.admin import offsets as offsets_module
from klamm.client.admin import topics as topics_module
from klamm.client.admin.calls import AdminCalls, alone
from klamm.client.admin.types import (
    ActiveProducer,
    BrokerVersions,
    ClusterDescription,
    ConfigChange,
    ConfigEntry,
    ConfigResource,
    CreatedTopic,
    GroupDescription,
    GroupListing,
    LogDirectory,
    NewTopic,
    OffsetSpec,
    PartitionReassignment,
    ResourceType,
    SettingValue,
    TopicDescription,
)
from klamm.client.arguments import (
    PartitionLike,
    PartitionT,
    as_name,
    as_names,
    as_partition,
    as_partitions,
    as_timeout,
    several,
)
from klamm.client.async_face import AsyncFace
from klamm.client.guard import ClientGuard
from klamm.client.network.network import Network
from klamm.client.options import ClientOptions
from klamm.client.results import CommittedOffset, OffsetAndTime, TopicPartition
from klamm.config.client_config import Bootstrap, ClientConfig, ConfigGiven

KIND = "admin"


class Admin(AsyncFace):
    """Administers a cluster: topics, replicas, settings, groups, offsets, records, log directories.

    A method with a name in the singular is about one item, and raises that item's error. A method with a name
    in the plural is about several items, and returns a dict with the result of each. If any item failed, it
    raises BatchFailed: `results` has the results of the other items, `errors` the error of each item that
    failed. Every call takes `timeout` in seconds (by default `default_api_timeout_ms`). Until then it tries
    again if leaders, coordinators or the controller moved.

    `bootstrap` names one or more brokers ("host:port,host:port", or a list); `config` is a mapping or a file
    with Kafka's names; options are in docs/CLIENT_CONFIGURATION.md. `ssl_context` replaces the ssl options.
    """

    def __init__(
        self,
        bootstrap: Bootstrap = None,
        *,
        config: ConfigGiven = None,
        ssl_context: ssl.SSLContext | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        settings = ClientConfig(KIND, bootstrap, config, options)
        self._network = Network(settings, ssl_context=ssl_context)
        self._calls = AdminCalls(self._network)
        self._guard = ClientGuard(KIND, self._network.client_id)

    # ---- life

    async def start(self) -> None:
        """Start. `async with` and the first call do it, too. No connection is made before that."""
        self._guard.check_on_loop()
        if not self._guard.started:
            self._guard.started = True
            await self._network.start()

    async def close(self, timeout: float | None = None) -> None:
        """Close all connections; calls under way raise ClientClosed. A connection that is not closed properly
        within `timeout` seconds is cut off.

        Idempotent; every other call raises ClientClosed afterwards.
        """
        seconds = as_timeout(timeout)
        if not self._guard.unusable:
            self._guard.check_on_loop()
        if self._guard.begin_close():
            await self._network.close(seconds)

    def counters(self) -> dict[str, float]:
        """The counters of this client so far, by name."""
        self._guard.check_not_forked()
        return self._network.counters.as_dict()

    async def _ready(self) -> AdminCalls:
        await self.start()
        return self._calls

    # ---- cluster

    async def describe_cluster(self, *, timeout: float | None = None) -> ClusterDescription:
        """The cluster's id, its controller, and its brokers with their addresses and racks."""
        return await cluster.describe_cluster(await self._ready(), timeout)

    async def broker_versions(self, broker_id: int, *, timeout: float | None = None) -> BrokerVersions:
        """The requests, with their versions, and the features that a broker supports."""
        return await cluster.broker_versions(await self._ready(), broker_id, timeout)

    async def describe_log_dirs(
        self,
        brokers: Iterable[int] | None = None,
        partitions: Iterable[PartitionLike] | None = None,
        *,
        timeout: float | None = None,
    ) -> dict[int, list[LogDirectory]]:
        """The log directories by broker, with the size of each replica in them. None means all.

        A directory that cannot be used says so in its `error`. BatchFailed names brokers that did not answer.
        """
        chosen = None if brokers is None else list(brokers)
        wanted = None if partitions is None else as_partitions(partitions)
        return await storage.describe_log_dirs(await self._ready(), chosen, wanted, timeout)

    # ---- topics

    async def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        *,
        configs: Mapping[str, SettingValue] | None = None,
        assignments: Mapping[int, Sequence[int]] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> CreatedTopic:
        """Create a topic, and return when it can be used.

        None for partitions or replication factor takes the brokers' default; `assignments` names the brokers
        of every partition instead. `validate_only` creates nothing, and raises the errors that creating
        would. Raises TopicExists if the topic exists already, InvalidTopic for a name that no topic can have.
        """
        topic = NewTopic(name, partitions, replication_factor, configs or {}, assignments)
        with alone(name):
            return (await self.create_topics([topic], validate_only=validate_only, timeout=timeout))[name]

    async def create_topics(
        self,
        topics: Iterable[NewTopic],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> dict[str, CreatedTopic]:
        """Create several topics; see `create_topic`. BatchFailed names those that could not be created."""
        wanted = several(topics, "topic")
        return await topics_module.create_topics(await self._ready(), wanted, validate_only, timeout)

    async def delete_topic(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a topic with all its records, and return when it is gone. UnknownTopic if it does not
        exist."""
        with alone(name):
            await self.delete_topics([name], timeout=timeout)

    async def delete_topics(self, names: Iterable[str], *, timeout: float | None = None) -> None:
        """Delete several topics; BatchFailed names those that could not be deleted."""
        chosen = as_names(names, "topic")
        if chosen:
            await topics_module.delete_topics(await self._ready(), chosen, timeout)

    async def list_topics(self, *, include_internal: bool = False, timeout: float | None = None) -> list[str]:
        """The names of all topics, sorted; internal ones such as __consumer_offsets only when asked for."""
        return await topics_module.list_topics(await self._ready(), include_internal, timeout)

    async def describe_topic(self, name: str, *, timeout: float | None = None) -> TopicDescription:
        """A topic's id and partitions: leaders, replicas, and which of them are in sync."""
        with alone(name):
            return (await self.describe_topics([name], timeout=timeout))[name]

    async def describe_topics(
        self, names: Iterable[str] | None = None, *, timeout: float | None = None
    ) -> dict[str, TopicDescription]:
        """Several topics by name, or all of them. BatchFailed names those that do not exist."""
        chosen = None if names is None else as_names(names, "topic")
        return await topics_module.describe_topics(await self._ready(), chosen, timeout)

    async def partitions_for(self, topic: str, timeout: float | None = None) -> list[int]:
        """The partitions of a topic, from 0 on. UnknownTopic if it does not exist."""
        found = await self.describe_topic(topic, timeout=as_timeout(timeout))
        return [one.partition for one in found.partitions]

    async def create_partitions(
        self,
        topic: str,
        total: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Give a topic more partitions, so that it has `total`, and return when they can be used.

        `assignments` names the brokers of each new partition. Keys of new records go to other partitions
        than before.
        """
        await topics_module.create_partitions(
            await self._ready(), as_name(topic, "topic"), total, assignments, validate_only, timeout
        )

    # ---- leaders and replicas

    async def elect_leaders(
        self,
        partitions: Iterable[PartitionLike] | None = None,
        *,
        unclean: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, bool]:
        """Make the preferred replica of each partition, the first of its replicas, the leader again.

        With `unclean`, partitions without a leader get any replica that is alive instead. Records are lost
        then. The result is True for a partition that has a new leader, and False for one that needed none.
        None for the partitions means all that need an election. BatchFailed names the partitions whose
        replicas are not alive or not in sync.
        """
        wanted = None if partitions is None else as_partitions(partitions)
        return await replicas.elect_leaders(await self._ready(), wanted, unclean, timeout)

    async def alter_partition_reassignments(
        self,
        targets: Mapping[PartitionT, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Move partitions to other brokers: {("orders", 0): [2, 3, 1]}. None instead of brokers cancels.

        The first broker becomes the preferred replica. The brokers may be more or fewer than before, unless
        `allow_replication_factor_change` is false. Returns when the moves have begun;
        `list_partition_reassignments` names those that are not complete. BatchFailed names the partitions
        that cannot be moved, and those whose move cannot be cancelled, because there is none.
        """
        wanted = {
            as_partition(partition): None if brokers is None else several(brokers, "broker")
            for partition, brokers in targets.items()
        }
        await replicas.alter_partition_reassignments(
            await self._ready(), wanted, allow_replication_factor_change, timeout
        )

    async def list_partition_reassignments(
        self, partitions: Iterable[PartitionLike] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """The partitions that are on the way to other brokers. None means all; others are left out."""
        wanted = None if partitions is None else as_partitions(partitions)
        return await replicas.list_partition_reassignments(await self._ready(), wanted, timeout)

    # ---- settings

    async def describe_config(
        self,
        resource: ConfigResource,
        keys: Iterable[str] | None = None,
        *,
        timeout: float | None = None,
    ) -> dict[str, ConfigEntry]:
        """The settings of a topic, a broker or a group by name: `ConfigResource.topic("orders")`.

        `keys` limits the answer to these keys; a key that the broker does not know is left out.
        """
        with alone(resource):
            return (await self.describe_configs([resource], keys, timeout=timeout))[resource]

    async def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        keys: Iterable[str] | None = None,
        *,
        timeout: float | None = None,
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        """The settings of several resources; see `describe_config`."""
        chosen = None if keys is None else as_names(keys, "setting")
        return await configs_module.describe_configs(await self._ready(), resources, chosen, timeout)

    async def alter_config(
        self,
        resource: ConfigResource,
        *,
        set: Mapping[str, SettingValue] | None = None,
        delete: Iterable[str] = (),
        append: Mapping[str, SettingValue] | None = None,
        subtract: Mapping[str, SettingValue] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Change settings of a topic, a broker or a group; other settings stay as they are.

        `delete` puts settings back to their defaults; `append` and `subtract` are for lists, such as
        cleanup.policy. Either all changes are made or none.
        """
        change = ConfigChange(set or {}, as_names(delete, "setting"), append or {}, subtract or {})
        with alone(resource):
            await self.alter_configs({resource: change}, validate_only=validate_only, timeout=timeout)

    async def alter_configs(
        self,
        changes: Mapping[ConfigResource, ConfigChange],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Change settings of several resources; see `alter_config`. Each is changed whole or not at all."""
        await configs_module.alter_configs(await self._ready(), changes, validate_only, timeout)

    async def list_config_resources(
        self, types: Iterable[ResourceType] = (), *, timeout: float | None = None
    ) -> list[ConfigResource]:
        """The topics, brokers and groups that have settings of their own; `types` limits the kinds."""
        return await configs_module.list_config_resources(await self._ready(), list(types), timeout)

    # ---- groups

    async def list_groups(
        self,
        *,
        states: Iterable[str] = (),
        types: Iterable[str] = (),
        timeout: float | None = None,
    ) -> list[GroupListing]:
        """All groups, sorted by name; or only those in `states` ("Stable") or of `types` ("classic").

        Asks every broker. BatchFailed names the brokers that did not answer.
        """
        return await groups_module.list_groups(
            await self._ready(), as_names(states, "state"), as_names(types, "type"), timeout
        )

    async def describe_group(self, group: str, *, timeout: float | None = None) -> GroupDescription:
        """A group's state and members, with the partitions of each. GroupError if there is no such group."""
        with alone(group):
            return (await self.describe_groups([group], timeout=timeout))[group]

    async def describe_groups(
        self, groups: Iterable[str], *, timeout: float | None = None
    ) -> dict[str, GroupDescription]:
        """Several groups by name; BatchFailed names those that do not exist."""
        return await groups_module.describe_groups(await self._ready(), as_names(groups, "group"), timeout)

    async def delete_group(self, group: str, *, timeout: float | None = None) -> None:
        """Delete a group with its offsets. GroupError if it has members, or does not exist."""
        with alone(group):
            await self.delete_groups([group], timeout=timeout)

    async def delete_groups(self, groups: Iterable[str], *, timeout: float | None = None) -> None:
        """Delete several groups; BatchFailed names those that could not be deleted."""
        await groups_module.delete_groups(await self._ready(), as_names(groups, "group"), timeout)

    async def remove_members(
        self,
        group: str,
        member_ids: Iterable[str] | None = None,
        instance_ids: Iterable[str] | None = None,
        *,
        reason: str | None = None,
        timeout: float | None = None,
    ) -> None:
        """Remove members from a group: by `member_ids`, and static members by `instance_ids`; without either,
        all.

        A member that still runs joins again. BatchFailed names the members that could not be removed.
        """
        await groups_module.remove_members(
            await self._ready(),
            as_name(group, "group"),
            None if member_ids is None else as_names(member_ids, "member"),
            None if instance_ids is None else as_names(instance_ids, "member"),
            reason,
            timeout,
        )

    # ---- offsets

    async def list_group_offsets(
        self,
        group: str,
        partitions: Iterable[PartitionLike] | None = None,
        *,
        timeout: float | None = None,
    ) -> dict[TopicPartition, CommittedOffset]:
        """The offsets that a group has committed; partitions without one are left out. None means all.

        A group that does not exist has none; that is not an error.
        """
        wanted = None if partitions is None else as_partitions(partitions)
        return await offsets_module.list_group_offsets(
            await self._ready(), as_name(group, "group"), wanted, timeout
        )

    async def list_groups_offsets(
        self, groups: Iterable[str], *, timeout: float | None = None
    ) -> dict[str, dict[TopicPartition, CommittedOffset]]:
        """The offsets that several groups have committed; see `list_group_offsets`. Asks each coordinator
        about many groups at once. BatchFailed names the groups whose coordinators did not answer."""
        return await offsets_module.list_groups_offsets(
            await self._ready(), as_names(groups, "group"), timeout
        )

    async def alter_group_offsets(
        self,
        group: str,
        offsets: Mapping[PartitionT, int | CommittedOffset],
        *,
        timeout: float | None = None,
    ) -> None:
        """Commit offsets for a group without members; creates the group if it does not exist. GroupError if
        it has members.

        BatchFailed names the partitions that could not be altered.
        """
        chosen = {
            as_partition(partition): offset
            if isinstance(offset, CommittedOffset)
            else CommittedOffset(offset)
            for partition, offset in offsets.items()
        }
        await offsets_module.alter_group_offsets(
            await self._ready(), as_name(group, "group"), chosen, timeout
        )

    async def delete_group_offsets(
        self, group: str, partitions: Iterable[PartitionLike], *, timeout: float | None = None
    ) -> None:
        """Delete committed offsets. BatchFailed names the partitions whose offsets were not deleted, because
        a member subscribes to the topic."""
        await offsets_module.delete_group_offsets(
            await self._ready(), as_name(group, "group"), as_partitions(partitions), timeout
        )

    async def group_lag(
        self,
        group: str,
        partitions: Iterable[PartitionLike] | None = None,
        *,
        timeout: float | None = None,
    ) -> dict[TopicPartition, int]:
        """How far a group's committed offsets are behind the ends of their partitions.

        Partitions without a committed offset, and those of deleted topics, are left out.
        """
        wanted = None if partitions is None else as_partitions(partitions)
        return await offsets_module.group_lag(await self._ready(), as_name(group, "group"), wanted, timeout)

    async def list_offsets(
        self,
        partitions: Mapping[PartitionT, OffsetSpec],
        *,
        read_committed: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndTime | None]:
        """Offsets by partition: "earliest", "latest", "max_timestamp", or the first at or after a time.

        A time is in milliseconds or an aware datetime. A result of None means that there is no such record.
        With `read_committed`, "latest" is where the first open transaction begins.
        """
        wanted = {as_partition(partition): spec for partition, spec in partitions.items()}
        return await offsets_module.list_offsets(await self._ready(), wanted, read_committed, timeout)

    # ---- records and producers

    async def delete_records(
        self, before: Mapping[PartitionT, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        """Delete the records before an offset, by partition; -1 deletes all records.

        Returns the first offset of each partition. An offset after the end is OffsetOutOfRange, in
        BatchFailed.
        """
        wanted = {as_partition(partition): offset for partition, offset in before.items()}
        return await storage.delete_records(await self._ready(), wanted, timeout)

    async def describe_producers(
        self, partitions: Iterable[PartitionLike], *, timeout: float | None = None
    ) -> dict[TopicPartition, list[ActiveProducer]]:
        """The idempotent producers that each partition remembers."""
        return await storage.describe_producers(await self._ready(), as_partitions(partitions), timeout)
