"""The answers of DescribeConfigs for a resource: each key with its value, its source and its synonyms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from klamm.config.broker_config import BrokerConfig, SourcedText
from klamm.config.broker_keys import BROKER_KEYS
from klamm.config.group_keys import GROUP_KEYS
from klamm.config.rows import ConfigRow, ConfigSource, UpdateMode
from klamm.config.topic_keys import TOPIC_KEYS, topic_config


class DescribedKey(NamedTuple):
    """One key of a resource. `synonyms` are all values set for the key; the first one is in effect."""

    row: ConfigRow
    text: str | None
    source: ConfigSource
    read_only: bool
    synonyms: list[SourcedText]


def describe_broker(config: BrokerConfig) -> Iterator[DescribedKey]:
    for name, row in BROKER_KEYS.items():
        if row.internal and not config.is_set(name):
            continue
        read_only = row.update_mode is UpdateMode.READ_ONLY
        yield _described(row, config.own_text_of(name), read_only, config.sourced_texts(name))


def describe_broker_default(config: BrokerConfig) -> Iterator[DescribedKey]:
    """The keys of the resource with the empty name: what was set at run time for all brokers."""
    for name, text in config.settings(ConfigSource.DYNAMIC_DEFAULT_BROKER).items():
        sourced = [SourcedText(name, text, ConfigSource.DYNAMIC_DEFAULT_BROKER)]
        yield _described(BROKER_KEYS[name], text, False, sourced)


def describe_topic(config: BrokerConfig, overrides: Mapping[str, str]) -> Iterator[DescribedKey]:
    values = topic_config(config, overrides)
    for name, row in TOPIC_KEYS.items():
        if row.internal and name not in overrides:
            continue
        sourced = _overridden(row, overrides, ConfigSource.DYNAMIC_TOPIC)
        text = sourced[0].text if sourced else row.text_of(values[name])
        for synonym in row.synonyms:
            sourced += config.sourced_texts(synonym.name)
        yield _described(row, text, False, sourced)


def describe_group(config: BrokerConfig, overrides: Mapping[str, str]) -> Iterator[DescribedKey]:
    for name, row in GROUP_KEYS.items():
        sourced = _overridden(row, overrides, ConfigSource.DYNAMIC_GROUP)
        for synonym in row.synonyms:
            sourced += config.sourced_texts(synonym.name)
        if not row.synonyms:
            sourced.append(SourcedText(name, row.text_of(row.default), ConfigSource.DEFAULT))
        yield _described(row, sourced[0].text, False, sourced)


def _overridden(row: ConfigRow, overrides: Mapping[str, str], source: ConfigSource) -> list[SourcedText]:
    """The value that the resource itself sets, in the normal spelling: `TRUE` becomes `true`."""
    if row.name not in overrides:
        return []
    return [SourcedText(row.name, row.text_of(row.parse(overrides[row.name])), source)]


def _described(row: ConfigRow, text: str | None, read_only: bool, sourced: list[SourcedText]) -> DescribedKey:
    source = sourced[0].source if sourced else ConfigSource.DEFAULT
    if row.sensitive:
        text = None
        sourced = [each._replace(text=None) for each in sourced]
    return DescribedKey(row, text, source, read_only, sourced)
