"""One client's configuration: an immutable mapping from every key of its kind to its typed value.

Values come from three places; a later place overrides an earlier one: a file or a mapping (`config=`) with
Kafka's dotted names, then keyword arguments in snake case, then the arguments that have their own names
(`bootstrap`, `group`). A mapping may use both spellings. The error for an unknown key names the nearest known
key. The error for a key of another kind of client (such as a consumer key given to a producer) names that
kind.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

from klamm.config.client_keys import ADMIN_KEYS, CONSUMER_KEYS, PRODUCER_KEYS
from klamm.config.files import read_config_file
from klamm.config.foreign_keys import hint_for
from klamm.config.rows import ConfigError, ConfigRow, RowTable, find_row
from klamm.config.values import ConfigValues

ConfigGiven: TypeAlias = Mapping[str, object] | str | PathLike[str] | None
"""The type of `config=`: settings by name, or the path of a properties or TOML file."""

Bootstrap: TypeAlias = str | Sequence[str] | None
"""The type of a client's first argument: "host:port,host:port", or a list of "host:port"."""

GROUP_ONLY = (
    "auto.commit.interval.ms",
    "group.instance.id",
    "heartbeat.interval.ms",
    "max.poll.interval.ms",
    "partition.assignment.strategy",
    "session.timeout.ms",
)
"""Keys that have no meaning without a group. A user who sets one has forgotten `group`: that is an error."""

TOKEN_PROVIDER = "sasl.oauth.token.provider"
"""The function that returns tokens for OAUTHBEARER. It has no row: a function has no text form."""

_numbers = count(1)
"""Numbers the clients of this process that were given no client.id."""

KEYS_BY_KIND: Mapping[str, RowTable] = {
    "producer": PRODUCER_KEYS,
    "consumer": CONSUMER_KEYS,
    "admin": ADMIN_KEYS,
}


class ClientConfig(ConfigValues):
    """The effective configuration of a client of one `kind` (a key of KEYS_BY_KIND)."""

    __slots__ = ("_given", "kind", "token_provider")

    def __init__(
        self,
        kind: str,
        bootstrap: Bootstrap = None,
        config: ConfigGiven = None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        """`options` are the keyword arguments; an argument that is None counts as not given."""
        self.kind = kind
        self.token_provider: Callable[[], Any] | None = None
        """Returns a token for OAUTHBEARER."""
        self._values = {name: row.default for name, row in KEYS_BY_KIND[kind].items()}
        self._given: set[str] = set()
        if isinstance(config, Mapping):
            for name, value in config.items():
                self._take(name, value, None)
        elif config is not None:
            if not isinstance(config, str | PathLike):
                raise ConfigError(
                    f"config={config!r} is refused: it must be a mapping, or the path of a file", key="config"
                )
            for setting in read_config_file(Path(fspath(config))):
                self._take(setting.name, setting.text, f"{fspath(config)}, line {setting.line}")
        for name, value in (options or {}).items():
            if value is not None:
                self._take(name, value, None)
        if bootstrap is not None:
            self._take("bootstrap.servers", bootstrap, None)
        if self.token_provider is not None and not self.given("sasl.mechanism"):
            self._values["sasl.mechanism"] = "OAUTHBEARER"
        self._check_together()
        if not self._values["client.id"]:
            self._values["client.id"] = f"klamm-{kind}-{os.getpid()}-{next(_numbers)}"

    def given(self, name: str) -> bool:
        """True if the user set `name`, even to its default."""
        return name in self._given

    def _take(self, name: str, value: object, origin: str | None) -> None:
        if not isinstance(name, str):
            raise ConfigError(f"{name!r} is not a configuration key: expected a str", key=str(name))
        dotted = name.replace("_", ".") if name not in self._values else name
        if dotted == TOKEN_PROVIDER:
            self._take_token_provider(value)
            return
        try:
            row = self._row(dotted)
            self._values[row.name] = row.parse(_text_of(row, value))
        except ConfigError as error:
            raise (error.at(origin) if origin else error) from None
        self._given.add(row.name)

    def _take_token_provider(self, provider: object) -> None:
        if not callable(provider):
            raise ConfigError(
                f"sasl_oauth_token_provider={provider!r} is refused: it must be a function, or a coroutine "
                "function, that returns a token",
                key=TOKEN_PROVIDER,
            )
        self.token_provider = provider
        self._given.add(TOKEN_PROVIDER)

    def _row(self, name: str) -> ConfigRow:
        rows = KEYS_BY_KIND[self.kind]
        others = [kind for kind, keys in KEYS_BY_KIND.items() if name in keys]
        if name not in rows and others:
            raise ConfigError(f"{name} is a key of the {others[0]}, not of the {self.kind}", key=name)
        if name not in rows and (hint := hint_for(name)) is not None:
            raise ConfigError(f"unknown {self.kind} configuration key {name!r}: {hint}", key=name)
        return find_row(rows, name, self.kind)

    def _check_together(self) -> None:
        """Check the rules that concern several keys, and raise ConfigError if one is broken."""
        if not self["bootstrap.servers"]:
            raise ConfigError(
                "bootstrap.servers is not set: give the client the address of a broker, such as "
                "'localhost:9092'",
                key="bootstrap.servers",
            )
        if self.str_("security.protocol").startswith("SASL_"):
            self._check_login()
        else:
            self._check_login_unused()
        if self.kind == "producer":
            self._check_idempotence()
        if self.kind == "consumer":
            self._check_order("heartbeat.interval.ms", "session.timeout.ms")
            self._check_group()

    def _check_login(self) -> None:
        if self["sasl.mechanism"] == "OAUTHBEARER":
            if self.token_provider is None:
                raise ConfigError(
                    "sasl.mechanism=OAUTHBEARER needs the argument sasl_oauth_token_provider, a function "
                    "that returns a token",
                    key=TOKEN_PROVIDER,
                )
            unused = next((name for name in ("sasl.username", "sasl.password") if self.given(name)), None)
            if unused is not None:
                raise ConfigError(
                    f"{unused} is not used with sasl.mechanism=OAUTHBEARER: leave it out", key=unused
                )
            return
        for name in ("sasl.mechanism", "sasl.username", "sasl.password"):
            if self[name] is None:
                raise ConfigError(f"security.protocol={self['security.protocol']} needs {name}", key=name)
        if self.token_provider is not None:
            raise ConfigError(
                f"sasl_oauth_token_provider is not used with sasl.mechanism={self['sasl.mechanism']}: "
                "leave it out",
                key=TOKEN_PROVIDER,
            )

    def _check_login_unused(self) -> None:
        """Refuse credentials that would never be sent: the user would think that the client logs in."""
        name = next((name for name in sorted(self._given) if name.startswith("sasl.")), None)
        if name is not None:
            raise ConfigError(
                f"{name} is not used with security.protocol={self['security.protocol']}: set "
                f"security.protocol to SASL_SSL or SASL_PLAINTEXT to log in, or leave {name} out",
                key=name,
            )

    def _check_group(self) -> None:
        if self.optional_str("group.id"):
            return
        unused = [name for name in GROUP_ONLY if self.given(name)]
        # Without a group nothing is committed anyway, so enable.auto.commit=false is allowed.
        if self.given("enable.auto.commit") and self.bool_("enable.auto.commit"):
            unused.append("enable.auto.commit")
        if unused:
            raise ConfigError(
                f"{unused[0]} is not used without a group: give the consumer a `group` (group.id), or leave "
                f"{unused[0]} out",
                key=unused[0],
            )

    def _check_idempotence(self) -> None:
        conflict = None
        if self.str_("acks") not in ("all", "-1"):
            conflict = "acks"
        elif self.int_("max.in.flight.requests.per.connection") > 5:
            conflict = "max.in.flight.requests.per.connection"
        elif self.int_("retries") == 0:
            conflict = "retries"
        if conflict is None or not self.bool_("enable.idempotence"):
            return
        if self.given("enable.idempotence"):
            raise ConfigError(
                f"{conflict}={self[conflict]} is refused: enable.idempotence needs acks=all, at most 5 in "
                "max.in.flight.requests.per.connection, and at least 1 in retries",
                key=conflict,
            )
        self._values["enable.idempotence"] = False

    def _check_order(self, smaller: str, larger: str) -> None:
        if self.int_(smaller) >= self.int_(larger):
            raise ConfigError(
                f"{smaller}={self[smaller]} is refused: it must be below {larger}={self[larger]}",
                key=smaller,
            )


def _text_of(row: ConfigRow, value: object) -> str:
    """`value` as the text that `row.parse` takes."""
    if isinstance(value, str):
        # librdkafka writes the values of security.protocol in small letters; Java accepts both.
        return value.upper() if row.name == "security.protocol" else value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    if isinstance(value, PathLike):
        return str(fspath(value))
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return ",".join(str(item) for item in value)
    raise ConfigError(f"{row.name}={value!r} is refused: it must be {row.bounds_text()}", key=row.name)
