"""One broker's configuration: an immutable mapping from every broker key to its typed value.

A value comes from the first of these layers that sets the key: what was set at run time for this broker, what
was set at run time for all brokers, what the broker was started with. If no layer sets the key, the layers
are searched for its synonyms, and if no layer sets a synonym, the default counts. Values are parsed once,
when the object is created, so reading a value is one lookup.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import dropwhile
from typing import NamedTuple

from klamm.config.broker_keys import BROKER_KEYS, find_broker_row
from klamm.config.cluster_keys import check_replica_selector
from klamm.config.listeners import (
    BROKERS,
    Listener,
    add_listener_for_brokers,
    check_listener_of_brokers,
    check_listeners,
    parse_http_listener,
    parse_listeners,
)
from klamm.config.rows import ConfigError, ConfigSource, ConfigValue
from klamm.config.values import ConfigValues


class SourcedText(NamedTuple):
    """The value of a key as text, and its source: one entry of the synonyms in DescribeConfigs."""

    name: str
    text: str | None
    source: ConfigSource


class BrokerConfig(ConfigValues):
    """The effective configuration. It never changes: `with_dynamic` returns a new one."""

    __slots__ = (
        "_layers",
        "_origins",
        "_parsed",
        "_static",
        "advertised_listeners",
        "http_listener",
        "inter_broker_listener_name",
        "listeners",
    )

    def __init__(
        self,
        static: Mapping[str, str] | None = None,
        *,
        origins: Mapping[str, str] | None = None,
        dynamic_default: Mapping[str, str] | None = None,
        dynamic_broker: Mapping[str, str] | None = None,
    ) -> None:
        """`origins` maps static keys to the place where they were written, for error messages."""
        self._origins = dict(origins or {})
        self._static = dict(static or {})
        self._layers: tuple[tuple[ConfigSource, dict[str, str]], ...] = (
            (ConfigSource.DYNAMIC_BROKER, dict(dynamic_broker or {})),
            (ConfigSource.DYNAMIC_DEFAULT_BROKER, dict(dynamic_default or {})),
            (ConfigSource.STATIC_BROKER, _with_both_ids(self._static)),
        )
        self._parsed = [self._parse_layer(layer) for _, layer in self._layers]
        self._values = {name: row.default for name, row in BROKER_KEYS.items()}
        for parsed in reversed(self._parsed):
            self._values.update(parsed)
        for name in _KEYS_WITH_SYNONYMS:
            self._values[name] = self._effective(name)
        if self._values["log.dirs"] is None:
            self._values["log.dirs"] = self._values["log.dir"]
        self.listeners = self._listeners_of("listeners")
        self.advertised_listeners: tuple[Listener, ...] | None = (
            None if self["advertised.listeners"] is None else self._listeners_of("advertised.listeners")
        )
        http = self.optional_str("klamm.http.listener")
        self.http_listener = None if http is None else parse_http_listener("klamm.http.listener", http)
        self.inter_broker_listener_name: str | None = None
        """The name of the listener that other brokers connect to; None if the broker is alone."""
        if self["klamm.coordination.url"] is not None:
            given = self.optional_str("inter.broker.listener.name")
            self.inter_broker_listener_name = BROKERS if given is None else given.upper()
            if given is None and self.listeners:
                self.listeners, self.advertised_listeners = add_listener_for_brokers(
                    self.listeners, self.advertised_listeners
                )
        self._check_together()

    def _parse_layer(self, layer: Mapping[str, str]) -> dict[str, ConfigValue]:
        parsed: dict[str, ConfigValue] = {}
        for name, text in layer.items():
            try:
                parsed[name] = find_broker_row(name).parse(text)
            except ConfigError as error:
                if name in self._origins and layer is self._layers[-1][1]:
                    raise error.at(self._origins[name]) from None
                raise
        return parsed

    def _effective(self, name: str) -> ConfigValue:
        candidates = [(name, 1), *BROKER_KEYS[name].synonyms]
        for candidate, factor in candidates:
            for parsed in self._parsed:
                if candidate in parsed:
                    return _scaled(parsed[candidate], factor)
        for candidate, factor in candidates:
            default = BROKER_KEYS[candidate].default
            if default is not None:
                return _scaled(default, factor)
        return None

    def _listeners_of(self, key: str) -> tuple[Listener, ...]:
        """The listeners in the value of `key`, without those of controllers (controller.listener.names)."""
        controllers = {name.upper() for name in self["controller.listener.names"] or ()}
        return tuple(each for each in parse_listeners(key, self.list_(key)) if each.name not in controllers)

    def _check_together(self) -> None:
        """Check the rules that concern several keys, and raise ConfigError if one is broken."""
        try:
            check_listeners(
                self.listeners, self.advertised_listeners, self.str_("listener.security.protocol.map")
            )
            if self.inter_broker_listener_name is not None:
                check_listener_of_brokers(self.listeners, self.inter_broker_listener_name)
            check_replica_selector(self.optional_str("replica.selector.class"))
            self._check_order("group.min.session.timeout.ms", "group.max.session.timeout.ms")
            self._check_order("log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms")
            if not self.list_("log.dirs"):
                raise ConfigError("log.dirs is refused: it must name at least one directory", key="log.dirs")
            if self["broker.id"] != self["node.id"]:
                raise ConfigError(
                    f"broker.id={self['broker.id']} is refused: it is the older name of node.id, which is "
                    f"{self['node.id']}; set one of them",
                    key="broker.id",
                )
            if self["process.roles"] is not None and "broker" not in self.list_("process.roles"):
                raise ConfigError(
                    "process.roles is refused: it must contain broker, because Klamm has no process that "
                    "is only a controller",
                    key="process.roles",
                )
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
        """A copy with these run-time settings in place of all run-time settings of this one."""
        return BrokerConfig(
            self._static,
            origins=self._origins,
            dynamic_default=cluster_wide,
            dynamic_broker=this_broker,
        )

    def settings(self, source: ConfigSource) -> Mapping[str, str]:
        """The settings of one layer, as text."""
        return dict(dict(self._layers).get(source, {}))

    def without_effect(self) -> list[str]:
        """The keys that are set and have no effect, sorted."""
        return sorted({name for layer in self._parsed for name in layer if not BROKER_KEYS[name].honoured})

    def is_set(self, name: str) -> bool:
        """True if a layer sets the key itself, not only a synonym."""
        return any(name in parsed for parsed in self._parsed)

    def sourced_texts(self, name: str) -> list[SourcedText]:
        """The synonyms of `name` in DescribeConfigs; the first one is the value that counts.

        As in Kafka the list goes layer by layer and begins at the key itself. So while `log.retention.ms` is
        unset, `log.retention.hours` is not listed as its synonym, although its value counts.
        """
        names = [name, *(synonym.name for synonym in BROKER_KEYS[name].synonyms)]
        sourced = [
            SourcedText(each, layer[each], source)
            for source, layer in self._layers
            for each in names
            if each in layer
        ]
        for each in names:
            row = BROKER_KEYS[each]
            if row.default is not None:
                sourced.append(SourcedText(each, row.text_of(row.default), ConfigSource.DEFAULT))
        return list(dropwhile(lambda each: each.name != name, sourced))

    def text_of(self, name: str) -> str | None:
        """The effective value as text."""
        return BROKER_KEYS[name].text_of(self._values[name])

    def own_text_of(self, name: str) -> str | None:
        """The value of the key itself as text: null, as in Kafka, while only a synonym is set."""
        for parsed in self._parsed:
            if name in parsed:
                return BROKER_KEYS[name].text_of(parsed[name])
        return BROKER_KEYS[name].text_of(BROKER_KEYS[name].default)


_KEYS_WITH_SYNONYMS = [name for name, row in BROKER_KEYS.items() if row.synonyms]


def _with_both_ids(static: Mapping[str, str]) -> dict[str, str]:
    """The settings with both node.id and broker.id, its older name: each one that is unset copies the
    other."""
    node_id = static.get("node.id", static.get("broker.id", str(BROKER_KEYS["node.id"].default)))
    return {"node.id": node_id, "broker.id": node_id, **static}


def _scaled(value: ConfigValue, factor: int) -> ConfigValue:
    """The value of a synonym, converted to the unit of the key; -1 means no limit in every unit."""
    if factor == 1 or not isinstance(value, int) or value == -1:
        return value
    return value * factor
