"""Kafka's keys that change nothing here, read from `kafka_keys.tsv`.

Files and tools written for Kafka set them, so each is checked against Kafka's own type and bounds and is
described with Kafka's own default. Most are accepted and ignored: the broker says so once when it starts.
Those whose reason stands in `_REFUSALS` promise something that would silently not hold: any value but the
default is refused.
"""

from __future__ import annotations

from pathlib import Path

from klamm.config.rows import ConfigRow, ConfigType, ConfigValue, Importance, Synonym, UpdateMode

_TABLE = Path(__file__).with_name("kafka_keys.tsv")

_NO_EFFECT = {
    "compaction-speed": "compaction reads and writes at a pace of its own",
    "group-coordinator": "group coordinators have no threads or buffers to set",
    "group-protocols": "of the group protocols only the classic one is served yet",
    "log-directories": "a directory that fails goes offline at once, and background work needs no delay",
    "logins": "nobody can log in yet",
    "metrics": "metrics are not reported in Kafka's way",
    "queues": "the broker has no such queue: a request is handled as it is read",
    "quorum": "metadata is kept in a store beside the logs, and no controllers vote on it",
    "quotas": "quotas and limits on rates are not built yet",
    "replication": "a cluster is one broker, and a partition has one replica, so far",
    "threads": "a broker is one event loop with a fixed number of threads for the disk",
    "tiered-storage": "tiered storage is not built",
    "transactions": "transactions are not built yet, and a client that asks for one is refused",
    "unstable": "no API or feature is held back as unstable",
}
"""Why a key has no effect, by the last column of the table."""

SECURITY_REFUSAL = (
    "TLS, logins and access control are not built yet, so the broker would serve everybody in clear text; "
    "remove the key, and let only a network that you trust reach the broker"
)

_REFUSALS = {
    "config-providers": "configuration providers are not built, so the values they stand for would not be "
    "looked up; remove the key and write the values themselves",
    "cordoned": "cordoning is not built, so new partitions would still be put there; "
    "take the directory out of log.dirs instead",
    "policies": "policy classes are not built, so the policy would not be enforced; remove the key",
    "quota-callback": "quotas are not built yet, so no quota would be enforced; remove the key",
    "security": SECURITY_REFUSAL,
    "tiered-storage-on": "tiered storage is not built, so no segment would be copied; remove the key",
}
"""What ignoring a key would break and what to do, by the last column of the table."""


def rows_without_effect(resource: str) -> list[ConfigRow]:
    """The rows of the "broker" or of the "group" keys."""
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
    broker_key = f"group.{name}"  # what a group key falls back to
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
