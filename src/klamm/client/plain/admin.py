"""`klamm.Admin`: the admin for plain threads. Names, arguments and docstrings are those of
`klamm.aio.Admin`."""

from __future__ import annotations

import ssl
from functools import partial
from typing import Unpack

from klamm.client.admin.admin import Admin as AsyncAdmin
from klamm.client.arguments import as_timeout
from klamm.client.options import ClientOptions
from klamm.client.plain.face import PlainFace, blocking, documented_by
from klamm.config.client_config import Bootstrap, ConfigGiven


@documented_by(AsyncAdmin)
class Admin(PlainFace):
    """Administers a cluster: topics, replicas, settings, groups, offsets, records, log directories.

    A method with a name in the singular is about one item, and raises that item's error. A method with a name
    in the plural is about several items, and returns a dict with the result of each. If any item failed, it
    raises BatchFailed: `results` has the results of the other items, `errors` the error of each item that
    failed. Every call takes `timeout` in seconds (by default `default_api_timeout_ms`). Until then it tries
    again if leaders, coordinators or the controller moved.

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
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(AsyncAdmin(bootstrap, config=config, ssl_context=ssl_context, **options))

    def close(self, timeout: float | None = None) -> None:
        self._close(partial(self._client.close, as_timeout(timeout)))

    # ---- cluster

    describe_cluster = blocking(AsyncAdmin.describe_cluster)
    broker_versions = blocking(AsyncAdmin.broker_versions)
    describe_log_dirs = blocking(AsyncAdmin.describe_log_dirs)

    # ---- topics

    create_topic = blocking(AsyncAdmin.create_topic)
    create_topics = blocking(AsyncAdmin.create_topics)
    delete_topic = blocking(AsyncAdmin.delete_topic)
    delete_topics = blocking(AsyncAdmin.delete_topics)
    partitions_for = blocking(AsyncAdmin.partitions_for)
    list_topics = blocking(AsyncAdmin.list_topics)
    describe_topic = blocking(AsyncAdmin.describe_topic)
    describe_topics = blocking(AsyncAdmin.describe_topics)
    create_partitions = blocking(AsyncAdmin.create_partitions)

    # ---- leaders and replicas

    elect_leaders = blocking(AsyncAdmin.elect_leaders)
    alter_partition_reassignments = blocking(AsyncAdmin.alter_partition_reassignments)
    list_partition_reassignments = blocking(AsyncAdmin.list_partition_reassignments)

    # ---- settings

    describe_config = blocking(AsyncAdmin.describe_config)
    describe_configs = blocking(AsyncAdmin.describe_configs)
    alter_config = blocking(AsyncAdmin.alter_config)
    alter_configs = blocking(AsyncAdmin.alter_configs)
    list_config_resources = blocking(AsyncAdmin.list_config_resources)

    # ---- groups

    list_groups = blocking(AsyncAdmin.list_groups)
    describe_group = blocking(AsyncAdmin.describe_group)
    describe_groups = blocking(AsyncAdmin.describe_groups)
    delete_group = blocking(AsyncAdmin.delete_group)
    delete_groups = blocking(AsyncAdmin.delete_groups)
    remove_members = blocking(AsyncAdmin.remove_members)

    # ---- offsets

    list_group_offsets = blocking(AsyncAdmin.list_group_offsets)
    list_groups_offsets = blocking(AsyncAdmin.list_groups_offsets)
    alter_group_offsets = blocking(AsyncAdmin.alter_group_offsets)
    delete_group_offsets = blocking(AsyncAdmin.delete_group_offsets)
    group_lag = blocking(AsyncAdmin.group_lag)
    list_offsets = blocking(AsyncAdmin.list_offsets)

    # ---- records and producers

    delete_records = blocking(AsyncAdmin.delete_records)
    describe_producers = blocking(AsyncAdmin.describe_producers)
