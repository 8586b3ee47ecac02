"""Writes docs/CONFIGURATION.md from the rows of src/klamm/config.

    .venv/bin/python scripts/config_reference.py > docs/CONFIGURATION.md

With the argument `client` it writes docs/CLIENT_CONFIGURATION.md: the keys of producers, consumers and
admins. A test compares each file with the output of this script, so the documents are always up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from klamm.config.broker_keys import BROKER_KEYS
from klamm.config.client_keys import CLIENT_KEYS, CONSUMER_KEYS, PRODUCER_KEYS
from klamm.config.group_keys import GROUP_KEYS
from klamm.config.rows import INT_MAX, LONG_MAX, ConfigRow, ConfigType, RowTable
from klamm.config.topic_keys import TOPIC_KEYS

_INTRODUCTION = """\
# Configuration

`scripts/config_reference.py` writes this file from the rows in `src/klamm/config/`.

Names and types are Kafka's; the text of a key says so if its default differs. A broker reads its
configuration from three sources; a later source overrides an earlier one:

1. a file (`klamm up --config FILE`): Java properties, as for Kafka, or TOML (`FILE.toml`), in which
   `[log.retention]` with `hours = 24` is the key `log.retention.hours`;
2. the environment: `KLAMM_LOG_RETENTION_HOURS=24`;
3. flags: `klamm up --set log.retention.hours=24`.

A broker does not start with an unknown key or a value out of bounds. It prints one line that says where the
key was written, which values are allowed, and which known key is nearest. Any Kafka admin client can change a
*cluster-wide* key while the broker runs, for one broker or for all (IncrementalAlterConfigs);
`min.insync.replicas` only for all. Such a change survives a restart and overrides files, environment and
flags.

Klamm accepts every key of Kafka 4.3. The [keys without effect](#keys-without-effect) are at the end.
"""

_WITHOUT_EFFECT = """\
## Keys without effect

Files and tools written for Kafka set these keys. So Klamm accepts them, checks their values against Kafka's
types and bounds, and returns Kafka's defaults in DescribeConfigs. They have no effect; a broker logs one line
at its start that names those that are set. If it would be dangerous to ignore a key, such as one that turns
on TLS, only its default is accepted: with any other value a broker does not start, and
IncrementalAlterConfigs is refused.
"""


_CLIENT_INTRODUCTION = """\
# Configuration of clients

`scripts/config_reference.py client` writes this file from the rows in `src/klamm/config/client_keys.py`.

Names and bounds are those of Kafka's own clients; the text of a key says so if its default differs. A client
reads its configuration from three sources; a later source overrides an earlier one:

1. `config=`: a mapping, or the path of a file: Java properties, as for Kafka, or TOML (`FILE.toml`), in which
   `[session.timeout]` with `ms = 10000` is the key `session.timeout.ms`;
2. keyword arguments, with underscores for dots: `linger_ms=5` is `linger.ms`;
3. the arguments that have their own names: the address (`bootstrap.servers`), and a consumer's `group`
   (`group.id`) and `start` (`auto.offset.reset`).

```python
klamm.Producer("localhost:9092", compression_type="zstd", linger_ms=5)
klamm.Producer(config={"bootstrap.servers": "localhost:9092", "compression.type": "zstd"})
klamm.Producer(config="producer.properties", linger_ms=5)
```

A mapping may use either spelling. The error for an unknown key names the nearest known key, the error for a
value out of bounds says which values are allowed, and an error in a file names its line.
"""


def render_client() -> str:
    """The text of docs/CLIENT_CONFIGURATION.md."""
    own = {
        kind: [row for row in rows.values() if row.name not in CLIENT_KEYS]
        for kind, rows in (("producer", PRODUCER_KEYS), ("consumer", CONSUMER_KEYS))
    }
    return "\n".join(
        [
            _CLIENT_INTRODUCTION,
            *_section("Every client", CLIENT_KEYS.values(), arguments=True),
            *_section("Producers", own["producer"], arguments=True),
            *_section("Consumers", own["consumer"], arguments=True),
            "## Admins",
            "",
            "An admin client has only the keys of every client.",
            "",
        ]
    )


def render() -> str:
    """The text of docs/CONFIGURATION.md."""
    return "\n".join(
        [
            _INTRODUCTION,
            *_section("Broker keys", _with_effect(BROKER_KEYS), changeable=True),
            *_section("Topic keys", _with_effect(TOPIC_KEYS)),
            _WITHOUT_EFFECT,
            *_without_effect("Broker keys", BROKER_KEYS),
            *_without_effect("Topic keys", TOPIC_KEYS),
            *_without_effect("Group keys", GROUP_KEYS),
        ]
    )


def _with_effect(rows: RowTable) -> list[ConfigRow]:
    return [row for row in rows.values() if row.honoured]


def _without_effect(title: str, rows: RowTable) -> list[str]:
    """The keys without effect, grouped by the reason."""
    keys_by_reason: dict[str, list[str]] = {}
    for row in rows.values():
        if not row.honoured and not row.internal:
            keys_by_reason.setdefault(row.doc, []).append(f"`{row.name}`")
    lines = [f"### {title}", ""]
    for reason, keys in sorted(keys_by_reason.items()):
        lines += [f"- {reason}<br>{', '.join(sorted(keys))}"]
    return [*lines, ""]


def _section(
    title: str, rows: Iterable[ConfigRow], *, changeable: bool = False, arguments: bool = False
) -> list[str]:
    """A table of keys, with a column for the update mode (brokers) or the argument names (clients)."""
    heads = ["key", *(["argument"] if arguments else []), "default", "allowed values"]
    heads += ["changes"] if changeable else []
    lines = [f"## {title}", "", "| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in sorted(rows, key=lambda row: row.name):
        cells = [f"`{row.name}`<br>{row.doc}{_fallback(row)}"]
        if arguments:
            cells.append(f"`{row.name.replace('.', '_')}`")
        cells += [_default(row), _bounds(row)]
        if changeable:
            cells.append(row.update_mode.value)
        lines.append("| " + " | ".join(cells) + " |")
    return [*lines, ""]


def _fallback(row: ConfigRow) -> str:
    if not row.synonyms:
        return ""
    return " Unset: " + ", then ".join(f"`{synonym.name}`" for synonym in row.synonyms) + "."


def _default(row: ConfigRow) -> str:
    text = row.text_of(row.default)
    if text is None:
        return "unset"
    if row.type is ConfigType.LIST:
        return "<br>".join(f"`{item}`" for item in text.split(","))
    return f"`{text}`" if text else "empty"


def _bounds(row: ConfigRow) -> str:
    words = row.bounds_text()
    for number in (LONG_MAX, INT_MAX):
        words = words.replace(f" to {number}", " up")
    return words.replace(f"from {-LONG_MAX - 1} up", "").strip()


if __name__ == "__main__":
    sys.stdout.write(render_client() if sys.argv[1:] == ["client"] else render())
