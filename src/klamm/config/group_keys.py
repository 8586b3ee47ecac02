"""The configuration keys of a group: the resource type `GROUP` of DescribeConfigs and
IncrementalAlterConfigs.

They belong to the newer group protocols, which are not served yet, so no key has an effect. A key that a
group does not set has the value of the broker key `group.<name>`, if there is one.
"""

from __future__ import annotations

from collections.abc import Mapping

from klamm.config.broker_config import BrokerConfig
from klamm.config.kafka_keys import rows_without_effect
from klamm.config.rows import ConfigError, ConfigRow, find_row, table

GROUP_KEYS = table(rows_without_effect("group"))


def find_group_row(name: str) -> ConfigRow:
    """The row of a group key. The ConfigError for an unknown key names the nearest known one."""
    return find_row(GROUP_KEYS, name, "group")


def validate_group_config(broker_config: BrokerConfig, overrides: Mapping[str, str]) -> None:
    """Raise ConfigError unless each value lies between the limits that the broker sets for groups."""
    for name, text in overrides.items():
        value = GROUP_KEYS[name].parse(text)
        protocol, _, rest = name.partition(".")
        low = broker_config.get(f"group.{protocol}.min.{rest}")
        high = broker_config.get(f"group.{protocol}.max.{rest}")
        for limit, words, broken in (
            (low, "at least", low is not None and value < low),
            (high, "at most", high is not None and value > high),
        ):
            if broken:
                raise ConfigError(
                    f"{name}={text!r} is refused: the broker's limit for it is {words} {limit}", key=name
                )
