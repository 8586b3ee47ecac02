"""The keys of a consumer group, as the `GROUP` resource of the configuration APIs knows them."""

from __future__ import annotations

from klamm.config.rows import ConfigRow, ConfigType, table

GROUP_KEYS = table(
    [
        ConfigRow(
            "consumer.heartbeat.interval.ms",
            ConfigType.INT,
            5000,
            "How often a member of the group reports itself. Has no effect yet: it concerns groups of the "
            "newer consumer protocol, which is not served.",
            minimum=5000,
            maximum=15_000,
            honoured=False,
        ),
        ConfigRow(
            "consumer.session.timeout.ms",
            ConfigType.INT,
            45_000,
            "How long a silent member stays in the group. Has no effect yet: it concerns groups of the "
            "newer consumer protocol, which is not served.",
            minimum=45_000,
            maximum=60_000,
            honoured=False,
        ),
    ]
)
