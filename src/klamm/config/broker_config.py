"""One broker's configuration: an immutable mapping from every broker key to its typed value.

A value is looked for in layers, the nearest first: set at run time for this broker, set at run time for all
brokers, set when the broker was started, the default. Where none of the first three has the key, its
synonyms are looked for in the same way, and only then does the default speak. Values are parsed once, when
the object is made, so that reading one is a lookup.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from klamm.config.broker_keys import BROKER_KEYS
from klamm.config.listeners import Listener, check_listeners, parse_listeners
from klamm.config.rows import ConfigError, ConfigSource, ConfigValue, find_row
from klamm.config.values import ConfigValues


class SourcedText(NamedTuple):
    """A key's value as text, with where it comes from: one line of DescribeConfigs' synonyms."""

    name: str
    text: str | None
    source: ConfigSource


class BrokerConfig(ConfigValues):
    """The effective configuration. `with_dynamic` makes another; nothing changes one."""

    __slots__ = ("_layers", "_origins", "advertised_listeners", "listeners")

    def __init__(
        self,
        static: Mapping[str, str] | None = None,
        *,
        origins: Mapping[str, str] | None = None,
        dynamic_default: Mapping[str, str] | None = None,
        dynamic_broker: Mapping[str, str] | None = None,
    ) -> None:
        """`origins` says, for error texts, where a static value was written."""
        self._origins = dict(origins or {})
        self._layers: tuple[tuple[ConfigSource, dict[str, str]], ...] = (
            (ConfigSource.DYNAMIC_BROKER, dict(dynamic_broker or {})),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, dict(dynamic_default or {})),
            (ConfigSource.STATIC_BROKER, dict(static or {})),
        )
        parsed = {source: self._parse_layer(layer) for source, layer in self._layers}
        self._values = {}
        for name in BROKER_KEYS:
            self._values[name] = self._effective(name, parsed)
        self.listeners = parse_listeners("listeners", self.list_("listeners"))
        advertised = self["advertised.listeners"]
        self.advertised_listeners: tuple[Listener, ...] | None = (
            parse_listeners("advertised.listeners", advertised) if isinstance(advertised, tuple) else None
        )
        self._check_together()

    def _parse_layer(self, layer: Mapping[str, str]) -> dict[str, ConfigValue]:
        parsed: dict[str, ConfigValue] = {}
        for name, text in layer.items():
            try:
                parsed[name] = find_row(BROKER_KEYS, name, "broker").parse(text)
            except ConfigError as error:
                if name in self._origins and layer is self._layers[-1][1]:
                    raise error.at(self._origins[name]) from None
                raise
        return parsed

    def _effective(self, name: str, parsed: Mapping[ConfigSource, Mapping[str, ConfigValue]]) -> ConfigValue:
        row = BROKER_KEYS[name]
        candidates = [(name, 1), *row.synonyms]
        for candidate, factor in candidates:
            for source, _ in self._layers:
                if candidate in parsed[source]:
                    return _scaled(parsed[source][candidate], factor)
        for candidate, factor in candidates:
            default = BROKER_KEYS[candidate].default
            if default is not None:
                return _scaled(default, factor)
        return None

    def _check_together(self) -> None:
        """The rules between keys."""
        try:
            check_listeners(
                self.listeners, self.advertised_listeners, self.list_("listener.security.protocol.map")
            )
            self._check_order("group.min.session.timeout.ms", "group.max.session.timeout.ms")
            self._check_order("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms")
            if not self.list_("log.dirs"):
                raise ConfigError("log.dirs is refused: it must name at least one directory", key="log.dirs")
        except ConfigError as error:
            if error.key in self._origins:
                raise error.at(self._origins[error.key]) from None
            raise

    def _check_order(self, smaller: str, larger: str) -> None:
        if self.int_(smaller) > self.int_(larger):
            raise ConfigError(
                f"{smaller}={self[smaller]} is refused: it must not exceed {larger}={self[larger]}",
                key=smaller,
            )

    def with_dynamic(
        self, cluster_wide: Mapping[str, str], this_broker: Mapping[str, str] | None = None
    ) -> BrokerConfig:
        """The same broker with these run-time settings in place of those it had."""
        return BrokerConfig(
            self._layers[-1][1],
            origins=self._origins,
            dynamic_default=cluster_wide,
            dynamic_broker=this_broker,
        )

    def with_static(self, settings: Mapping[str, str]) -> BrokerConfig:
        """The same broker as if it had been started with these settings too."""
        (_, broker), (_, default), (_, static) = self._layers
        return BrokerConfig(
            {**static, **settings},
            origins={name: origin for name, origin in self._origins.items() if name not in settings},
            dynamic_default=default,
            dynamic_broker=broker,
        )

    def settings(self, source: ConfigSource) -> Mapping[str, str]:
        """What one layer sets, as text."""
        return dict(dict(self._layers).get(source, {}))

    def source_of(self, name: str) -> ConfigSource:
        """The layer that the effective value of `name` comes from."""
        sourced = self.sourced_texts(name)
        return sourced[0].source if sourced else ConfigSource.DEFAULT

    def sourced_texts(self, name: str) -> list[SourcedText]:
        """Every value that speaks for `name`, the effective one first."""
        row = BROKER_KEYS[name]
        names = [name, *(synonym.name for synonym in row.synonyms)]
        sourced: list[SourcedText] = []
        for each in names:
            for source, layer in self._layers:
                if each in layer:
                    sourced.append(SourcedText(each, layer[each], source))
        for each in names:
            each_row = BROKER_KEYS[each]
            if each_row.default is not None:
                sourced.append(SourcedText(each, each_row.text_of(each_row.default), ConfigSource.DEFAULT))
        return sourced

    def text_of(self, name: str) -> str | None:
        return BROKER_KEYS[name].text_of(self._values[name])


def _scaled(value: ConfigValue, factor: int) -> ConfigValue:
    """A synonym's value in the unit of the key it speaks for; -1 means no limit in every unit."""
    if factor == 1 or not isinstance(value, int) or value == -1:
        return value
    return value * factor
