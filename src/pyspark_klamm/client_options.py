"""The options that start with `kafka.`: what they mean to Klamm's client. A core, for source and sink.

They are Kafka's own settings, and go to the client by the rows of its configuration, which refuse what they
do not know. Three things are put right on the way, so that queries need no change: Java's logins
(sasl.jaas.config) and PEM stores get the client's names, settings of group membership, which reading a range
has none of, are left out, and what Spark decides itself is refused.
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
    "auto.offset.reset": "startingOffsets says where a query starts, and its checkpoint where it goes on",
    "key.deserializer": "keys are binary; cast or decode the column key",
    "value.deserializer": "values are binary; cast or decode the column value",
    "key.serializer": "the column key is written as it is; cast or encode it before",
    "value.serializer": "the column value is written as it is; cast or encode it before",
    "enable.auto.commit": "Spark's checkpoint keeps what was read; the group gets it after every batch",
    "interceptor.classes": "interceptors are Java classes",
}
_WITHOUT_MEANING = frozenset(GROUP_ONLY) | {"group.id", "max.poll.records"}
"""What a reader of ranges, which is no member of a group, has no use for."""

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
        raise OptionError(f"the options {PREFIX}* are refused: {error}") from None


def client_settings(options: Mapping[str, str], kind: str) -> dict[str, str]:
    """The settings for the client, with its names and without the prefix."""
    given = {
        name.lower().removeprefix(PREFIX): value
        for name, value in options.items()
        if name.lower().startswith(PREFIX)
    }
    if not given.get(BOOTSTRAP, "").strip():
        raise OptionError(
            f"the option {PREFIX}{BOOTSTRAP} is missing: give it the addresses of brokers, as host:port"
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
    """Java's way to give a name and a password."""
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
    """Java's stores are of use where they are PEM files; others are refused by the client, with a hint."""
    for store, (kind, names) in _PEM_STORES.items():
        if settings.get(kind, "").upper() == "PEM":
            del settings[kind]
            location = settings.pop(store, None)
            if location is not None:
                for name in names:
                    settings.setdefault(name, location)
