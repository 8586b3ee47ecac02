"""Reads a broker's configuration from a file, environment variables and flags; a later one overrides an
earlier.

An environment variable is `KLAMM_` and the key in capitals with underscores for dots:
`KLAMM_LOG_RETENTION_HOURS=24`. A flag is `key=value`. Every error says where the value was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from klamm.config.broker_config import BrokerConfig as BrokerConfig
from klamm.config.broker_keys import find_broker_row
from klamm.config.files import read_config_file
from klamm.config.rows import ConfigError as ConfigError

ENVIRONMENT_PREFIX = "KLAMM_"

# Kubernetes sets these variables in every pod if a service is named "klamm". They are not configuration.
_SERVICE_LINK = re.compile(r"KLAMM_(SERVICE_(HOST|PORT(_.*)?)|PORT(_\d+_.*)?)")


def load_broker_config(
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Iterable[str] = (),
) -> BrokerConfig:
    """The configuration from all three sources. Raises ConfigError with a text of one line."""
    static: dict[str, str] = {}
    origins: dict[str, str] = {}

    def take(name: str, text: str, origin: str) -> None:
        try:
            find_broker_row(name).parse(text)
        except ConfigError as error:
            raise error.at(origin) from None
        static[name] = text
        origins[name] = origin

    if file is not None:
        for setting in read_config_file(file):
            take(setting.name, setting.text, f"{file}, line {setting.line}")
    for variable, text in sorted((environment or {}).items()):
        if variable.startswith(ENVIRONMENT_PREFIX) and not _SERVICE_LINK.fullmatch(variable):
            take(_key_of(variable), text, f"environment variable {variable}")
    for flag in flags:
        name, separator, text = flag.partition("=")
        if not separator:
            raise ConfigError(f"--set {flag!r} is refused: it must read key=value", key=flag)
        take(name.strip(), text, f"--set {flag}")
    return BrokerConfig(static, origins=origins)


def _key_of(variable: str) -> str:
    return variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", ".")
