"""`klamm.Admin`: the admin for plain threads. Names, arguments and words are those of `klamm.aio.Admin`."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping, Sequence
from typing import Unpack

from klamm.client.admin.admin import Admin as AsyncAdmin
from klamm.client.admin.options import AdminOptions
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
    ResourceType,
    SettingValue,
    TopicDescription,
)
from klamm.client.arguments import PartitionLike, PartitionT
from klamm.client.plain.face import PlainFace, documented_by
from klamm.client.results import CommittedOffset, OffsetAndTime, TopicPartition
from klamm.config.client_config import Bootstrap, ConfigGiven


@documented_by(AsyncAdmin)
class Admin(PlainFace):
    """Administers a cluster: topics, settings, groups, offsets, records, log directories.

    A method whose name is in the singular is about one thing and raises its error. One in the plural asks
    about all at once and returns a dict from each to its result; when any failed it raises BatchFailed, whose
    `results` has those that succeeded and whose `errors` has the error of each other. Every call takes
    `timeout` in seconds (`default_api_timeout_ms` if it is not given), within which it tries again when
    leaders, coordinators or the controller moved.

    `bootstrap` names one or more brokers ("host:port,host:port", or a list); `config` is a mapping or a file
    with Kafka's names; options are in docs/CLIENT_CONFIGURATION.md. `ssl_context` replaces the ssl options.
    """

    _client: AsyncAdmin

    def __init__(
        self,
        bootstrap: Bootstrap = None,
        *,
        config: ConfigGiven = None,
        ssl_context: ssl.SSLContext | None = None,
        **options: Unpack[AdminOptions],
    ) -> None:
        super().__init__(AsyncAdmin(bootstrap, config=config, ssl_context=ssl_context, **options))

    # ---- cluster

    def describe_cluster(self, *, timeout: float | None = None) -> ClusterDescription:
        return self._run(self._client.describe_cluster(timeout=timeout))

    def broker_versions(self, broker_id: int, *, timeout: float | None = None) -> BrokerVersions:
        return self._run(self._client.broker_versions(broker_id, timeout=timeout))

    def describe_log_dirs(
        self,
        brokers: Iterable[int] | None = None,
        partitions: Iterable[PartitionLike] | None = None,
        *,
        timeout: float | None = None,
    ) -> dict[int, list[LogDirectory]]:
        return self._run(self._client.describe_log_dirs(brokers, partitions, timeout=timeout))

    # ---- topics

    def create_topic(
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
        return self._run(
            self._client.create_topic(
                name,
                partitions,
                replication_factor,
                configs=configs,
                assignments=assignments,
                validate_only=validate_only,
                timeout=timeout,
            )
        )

    def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False, timeout: float | None = None
    ) -> dict[str, CreatedTopic]:
        return self._run(self._client.create_topics(topics, validate_only=validate_only, timeout=timeout))

    def delete_topic(self, name: str, *, timeout: float | None = None) -> None:
        self._run(self._client.delete_topic(name, timeout=timeout))

    def delete_topics(self, names: Iterable[str], *, timeout: float | None = None) -> None:
        self._run(self._client.delete_topics(names, timeout=timeout))

    def list_topics(self, *, include_internal: bool = False, timeout: float | None = None) -> list[str]:
        return self._run(self._client.list_topics(include_internal=include_internal, timeout=timeout))

    def describe_topic(self, name: str, *, timeout: float | None = None) -> TopicDescription:
        return self._run(self._client.describe_topic(name, timeout=timeout))

    def describe_topics(
        self, names: Iterable[str] | None = None, *, timeout: float | None = None
    ) -> dict[str, TopicDescription]:
        return self._run(self._client.describe_topics(names, timeout=timeout))

    def create_partitions(
        self,
        topic: str,
        total: int,
        *,
        assignments: Sequence[Sequence[int]] | None = None,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        self._run(
            self._client.create_partitions(
                topic, total, assignments=assignments, validate_only=validate_only, timeout=timeout
            )
        )

    # ---- settings

    def describe_config(
        self, resource: ConfigResource, keys: Iterable[str] | None = None, *, timeout: float | None = None
    ) -> dict[str, ConfigEntry]:
        return self._run(self._client.describe_config(resource, keys, timeout=timeout))

    def describe_configs(
        self,
        resources: Iterable[ConfigResource],
        keys: Iterable[str] | None = None,
        *,
        timeout: float | None = None,
    ) -> dict[ConfigResource, dict[str, ConfigEntry]]:
        return self._run(self._client.describe_configs(resources, keys, timeout=timeout))

    def alter_config(
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
        self._run(
            self._client.alter_config(
                resource,
                set=set,
                delete=delete,
                append=append,
                subtract=subtract,
                validate_only=validate_only,
                timeout=timeout,
            )
        )

    def alter_configs(
        self,
        changes: Mapping[ConfigResource, ConfigChange],
        *,
        validate_only: bool = False,
        timeout: float | None = None,
    ) -> None:
        self._run(self._client.alter_configs(changes, validate_only=validate_only, timeout=timeout))

    def list_config_resources(
        self, types: Iterable[ResourceType] = (), *, timeout: float | None = None
    ) -> list[ConfigResource]:
        return self._run(self._client.list_config_resources(types, timeout=timeout))

    # ---- groups

    def list_groups(
        self, *, states: Iterable[str] = (), types: Iterable[str] = (), timeout: float | None = None
    ) -> list[GroupListing]:
        return self._run(self._client.list_groups(states=states, types=types, timeout=timeout))

    def describe_group(self, group: str, *, timeout: float | None = None) -> GroupDescription:
        return self._run(self._client.describe_group(group, timeout=timeout))

    def describe_groups(
        self, groups: Iterable[str], *, timeout: float | None = None
    ) -> dict[str, GroupDescription]:
        return self._run(self._client.describe_groups(groups, timeout=timeout))

    def delete_group(self, group: str, *, timeout: float | None = None) -> None:
        self._run(self._client.delete_group(group, timeout=timeout))

    def delete_groups(self, groups: Iterable[str], *, timeout: float | None = None) -> None:
        self._run(self._client.delete_groups(groups, timeout=timeout))

    def remove_members(
        self,
        group: str,
        member_ids: Iterable[str] | None = None,
        instance_ids: Iterable[str] | None = None,
        *,
        reason: str | None = None,
        timeout: float | None = None,
    ) -> None:
        self._run(
            self._client.remove_members(group, member_ids, instance_ids, reason=reason, timeout=timeout)
        )

    # ---- offsets

    def list_group_offsets(
        self, group: str, partitions: Iterable[PartitionLike] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        return self._run(self._client.list_group_offsets(group, partitions, timeout=timeout))

    def alter_group_offsets(
        self, group: str, offsets: Mapping[PartitionT, int | CommittedOffset], *, timeout: float | None = None
    ) -> None:
        self._run(self._client.alter_group_offsets(group, offsets, timeout=timeout))

    def delete_group_offsets(
        self, group: str, partitions: Iterable[PartitionLike], *, timeout: float | None = None
    ) -> None:
        self._run(self._client.delete_group_offsets(group, partitions, timeout=timeout))

    def group_lag(
        self, group: str, partitions: Iterable[PartitionLike] | None = None, *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        return self._run(self._client.group_lag(group, partitions, timeout=timeout))

    def list_offsets(
        self,
        partitions: Mapping[PartitionT, OffsetSpec],
        *,
        read_committed: bool = False,
        timeout: float | None = None,
    ) -> dict[TopicPartition, OffsetAndTime | None]:
        return self._run(
            self._client.list_offsets(partitions, read_committed=read_committed, timeout=timeout)
        )

    # ---- records and producers

    def delete_records(
        self, before: Mapping[PartitionT, int], *, timeout: float | None = None
    ) -> dict[TopicPartition, int]:
        return self._run(self._client.delete_records(before, timeout=timeout))

    def describe_producers(
        self, partitions: Iterable[PartitionLike], *, timeout: float | None = None
    ) -> dict[TopicPartition, list[ActiveProducer]]:
        return self._run(self._client.describe_producers(partitions, timeout=timeout))
