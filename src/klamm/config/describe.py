"""What DescribeConfigs tells about a resource: each key with its value, its source and its synonyms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from klamm.config.broker_config import BrokerConfig, SourcedText
from klamm.config.broker_keys import BROKER_KEYS
from klamm.config.group_keys import GROUP_KEYS
from klamm.config.rows import ConfigRow, ConfigSource, UpdateMode
from klamm.config.topic_keys import TOPIC_KEYS, topic_config


class DescribedKey(NamedTuple):
    """One key of a resource. `synonyms` holds every value that speaks for it, the effective one first."""

    row: ConfigRow
    text: str | None
    source: ConfigSource
    read_only: bool
    synonyms: list[SourcedText]


def describe_broker(config: BrokerConfig) -> Iterator[DescribedKey]:
    for name, row in BROKER_KEYS.items():
        sourced = config.sourced_texts(name)
        source = sourced[0].source if sourced else ConfigSource.DEFAULT
        read_only = row.update_mode is UpdateMode.READ_ONLY
        yield _described(row, config.text_of(name), source, read_only, sourced)


def describe_broker_default(config: BrokerConfig) -> Iterator[DescribedKey]:
    """The resource of all brokers has only what was set at run time for all of them."""
    for name, text in config.settings(ConfigSource.DYNAMIC_DEFAULT_BROKER).items():
        source = ConfigSource.DYNAMIC_DEFAULT_BROKER
        yield _described(BROKER_KEYS[name], text, source, False, [SourcedText(name, text, source)])


def describe_topic(config: BrokerConfig, overrides: Mapping[str, str]) -> Iterator[DescribedKey]:
    values = topic_config(config, overrides)
    for name, row in TOPIC_KEYS.items():
        if row.internal and name not in overrides:
            continue
        sourced: list[SourcedText] = []
        if name in overrides:
            sourced.append(SourcedText(name, overrides[name], ConfigSource.DYNAMIC_TOPIC))
        for synonym in row.synonyms:
            sourced += config.sourced_texts(synonym.name)
        source = sourced[0].source if sourced else ConfigSource.DEFAULT
        text = overrides[name] if name in overrides else row.text_of(values[name])
        yield _described(row, text, source, False, sourced)


def describe_group(overrides: Mapping[str, str]) -> Iterator[DescribedKey]:
    for name, row in GROUP_KEYS.items():
        default = SourcedText(name, row.text_of(row.default), ConfigSource.DEFAULT)
        sourced = [default]
        if name in overrides:
            sourced.insert(0, SourcedText(name, overrides[name], ConfigSource.DYNAMIC_GROUP))
        yield _described(row, sourced[0].text, sourced[0].source, False, sourced)


def _described(
    row: ConfigRow, text: str | None, source: ConfigSource, read_only: bool, sourced: list[SourcedText]
) -> DescribedKey:
    if row.sensitive:
        text = None
        sourced = [each._replace(text=None) for each in sourced]
    return DescribedKey(row, text, source, read_only, sourced)
