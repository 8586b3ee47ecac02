"""Turns the options that start with `kafka.` into settings of Klamm's client. A core, for source and sink.

They are Kafka's own settings, and the client's configuration rejects unknown ones. So that existing queries
need no change, Java's logins (sasl.jaas.config) and PEM stores are translated to the client's names, and
settings of group membership are ignored. Settings that Spark decides itself are an error.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from klamm.config.client_config import GROUP_ONLY, ClientConfig
from klamm.config.rows import ConfigError
from pyspark_klamm.errors import OptionError

PREFIX = "kafka."
BOOTSTRAP = "bootstrap.servers"

_DECIDED_BY_SPARK = {
    "auto.offset.reset": "startingOffsets sets where a query starts, and its checkpoint where it continues",
    "key.deserializer": "keys are binary; cast or decode the column key",
    "value.deserializer": "values are binary; cast or decode the column value",
    "key.serializer": "the column key is written as it is; cast or encode it before",
    "value.serializer": "the column value is written as it is; cast or encode it before",
    "enable.auto.commit": "Spark's checkpoint has the offsets; the group gets them after every batch",
    "interceptor.classes": "interceptors are Java classes",
}
_WITHOUT_MEANING = frozenset(GROUP_ONLY) | {"group.id", "max.poll.records"}
"""Settings that are ignored, as a reader of ranges is not a member of a group."""

_JAAS_LOGIN = re.compile(r"\.(Plain|Scram)LoginModule\b")
_JAAS_FIELD = re.compile(r"(\w+)\s*=\s*(?:\"((?:[^\"\\]|\\.)*)\"|'((?:[^'\\]|\\.)*)'|([^\s;]+))")
_PEM_STORES = {
    "ssl.truststore.location": ("ssl.truststore.type", ("ssl.ca.location",)),
    "ssl.keystore.location": ("ssl.keystore.type", ("ssl.certificate.location", "ssl.key.location")),
}


def client_config(options: Mapping[str, str], kind: str) -> ClientConfig:
    """The configuration of a consumer or a producer from a query's options."""
    settings = client_settings(options, kind)
    try:
        return ClientConfig(kind, config=settings)
    except ConfigError as error:
        raise OptionError(f"the options {PREFIX}* are not valid: {error}") from None


def client_settings(options: Mapping[str, str], kind: str) -> dict[str, str]:
    """The settings for the client: translated, and without the prefix."""
    given = {
        name.lower().removeprefix(PREFIX): value
        for name, value in options.items()
        if name.lower().startswith(PREFIX)
    }
    if not given.get(BOOTSTRAP, "").strip():
        raise OptionError(
            f"the option {PREFIX}{BOOTSTRAP} is missing: give the addresses of brokers, as host:port"
        )
    for name, reason in _DECIDED_BY_SPARK.items():
        if name in given:
            raise OptionError(f"the option {PREFIX}{name} is not supported: {reason}")
    _rename_login(given)
    _rename_stores(given)
    if kind == "consumer":
        for name in _WITHOUT_MEANING:
            given.pop(name, None)
        given["allow.auto.create.topics"] = "false"  # a query that reads creates nothing
    return given


def _rename_login(settings: dict[str, str]) -> None:
    """Translate Java's sasl.jaas.config to user name and password."""
    text = settings.pop("sasl.jaas.config", None)
    if text is None:
        return
    fields = {match[1]: match[2] or match[3] or match[4] or "" for match in _JAAS_FIELD.finditer(text)}
    if not _JAAS_LOGIN.search(text) or not {"username", "password"} <= fields.keys():
        raise OptionError(
            f"the option {PREFIX}sasl.jaas.config needs PlainLoginModule or ScramLoginModule with "
            f"username and password; or give {PREFIX}sasl.username and {PREFIX}sasl.password"
        )
    settings.setdefault("sasl.username", _unescaped(fields["username"]))
    settings.setdefault("sasl.password", _unescaped(fields["password"]))
    if "PlainLoginModule" in text:
        settings.setdefault("sasl.mechanism", "PLAIN")


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)


def _rename_stores(settings: dict[str, str]) -> None:
    """Translate Java's key and trust stores that are PEM files. The client rejects others, with a hint."""
    for store, (kind, names) in _PEM_STORES.items():
        if settings.get(kind, "").upper() == "PEM":
            del settings[kind]
            location = settings.pop(store, None)
            if location is not None:
                for name in names:
                    settings.setdefault(name, location)
