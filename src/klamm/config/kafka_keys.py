"""Kafka's broker and group keys that have no effect in Klamm, read from `kafka_keys.tsv`.

Files and tools written for Kafka set these keys. So Klamm checks their values against Kafka's types and
bounds, and describes them with Kafka's defaults. Most are accepted and ignored; a broker logs once at its
start which of them are set. The keys with a reason in `_REFUSALS` would make the user rely on something that
Klamm does not do, such as TLS: for them every value except the default is refused.
"""

from __future__ import annotations

from pathlib import Path

from klamm.config.rows import ConfigRow, ConfigType, ConfigValue, Importance, Synonym, UpdateMode

_TABLE = Path(__file__).with_name("kafka_keys.tsv")

_NO_EFFECT = {
    "compaction-speed": "the speed of compaction cannot be set",
    "group-coordinator": "group coordinators have no threads or buffers of their own",
    "group-protocols": "only the classic group protocol is served yet",
    "log-directories": "a directory goes offline at the first disk error, and background work has no delay",
    "logins": "logins (SASL) are not built yet",
    "metrics": "Kafka's metrics reporters are not built",
    "queues": "the broker has no request queue: it handles a request when it has read it",
    "quorum": "the broker keeps the metadata in its own store; there is no quorum of controllers",
    "quotas": "quotas and rate limits are not built yet",
    "replication": "a follower fetches over one connection for each leader, and three for what is behind",
    "threads": "a broker has one event loop and a fixed number of threads for the disk",
    "tiered-storage": "tiered storage is not built",
    "transactions": "transactions are not built yet, and a client that asks for one is refused",
    "unstable": "unstable APIs and features are not built, so there are none to enable",
}
"""Why a key has no effect, by the last column of the table."""

SECURITY_REFUSAL = (
    "TLS, logins and access control are not built yet, so the broker would serve everybody in clear text; "
    "remove the key, and let only a network that you trust reach the broker"
)

_REFUSALS = {
    "config-providers": "configuration providers are not built, so references like ${file:...} would not be "
    "replaced; remove the key and write the values themselves",
    "cordoned": "cordoning is not built, so new partitions would still be created in the directory; "
    "take the directory out of log.dirs instead",
    "policies": "policy classes are not built, so the policy would not be enforced; remove the key",
    "quota-callback": "quotas are not built yet, so no quota would be enforced; remove the key",
    "security": SECURITY_REFUSAL,
    "tiered-storage-on": "tiered storage is not built, so no segment would be copied; remove the key",
}
"""What ignoring a key would break and what to do, by the last column of the table."""


def rows_without_effect(resource: str) -> list[ConfigRow]:
    """The rows of a resource: "broker" or "group"."""
    lines = [line.split("\t") for line in _TABLE.read_text(encoding="utf-8").splitlines() if line[0] != "#"]
    names = {fields[1] for fields in lines}
    return [_row(names, *fields[1:]) for fields in lines if fields[0] == resource]


def _row(
    names: set[str],
    name: str,
    type_name: str,
    default: str,
    bounds: str,
    importance: str,
    changes: str,
    internal: str,
    reason: str,
) -> ConfigRow:
    kind = ConfigType[type_name.upper()]
    minimum, maximum, choices = _bounds(bounds)
    refusal = _REFUSALS.get(reason, "")
    doc = f"Only the default is accepted: {refusal}." if refusal else f"Has no effect: {_NO_EFFECT[reason]}."
    broker_key = f"group.{name}"  # its value counts while the group does not set the key
    return ConfigRow(
        name,
        kind,
        _default(kind, default),
        doc,
        Importance(importance),
        UpdateMode(changes) if changes else UpdateMode.READ_ONLY,
        minimum,
        maximum,
        choices,
        synonyms=(Synonym(broker_key),) if broker_key in names else (),
        internal=bool(internal),
        honoured=False,
        refused_because=refusal,
    )


def _default(kind: ConfigType, text: str) -> ConfigValue:
    if text == "null":
        return None
    if kind is ConfigType.BOOLEAN:
        return text == "true"
    if kind is ConfigType.LIST:
        return tuple(text.split(",")) if text else ()
    if kind is ConfigType.DOUBLE:
        return float(text)
    return int(text) if kind in (ConfigType.INT, ConfigType.LONG, ConfigType.SHORT) else text


def _bounds(text: str) -> tuple[float | None, float | None, tuple[str, ...]]:
    """Minimum, maximum and choices of `1..`, `1..9`, `one|other` or `not empty`."""
    if not text:
        return None, None, ()
    if text == "not empty":
        return 1, None, ()
    low, dots, high = text.partition("..")
    if not dots:
        return None, None, tuple(text.split("|"))
    return _number(low), _number(high) if high else None, ()


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)
