"""Writes docs/CONFIGURATION.md from the rows of src/klamm/config.

    .venv/bin/python scripts/config_reference.py > docs/CONFIGURATION.md

With the argument `client` it writes docs/CLIENT_CONFIGURATION.md: the keys of producers, consumers, admins.
A test compares each file with what this makes, so the documents cannot fall behind.
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

This file is made from the rows in `src/klamm/config/` by `scripts/config_reference.py`.

Names, types and defaults are Kafka's. A broker reads them, the later winning, from

1. a file (`klamm up --config FILE`): Java properties as Kafka has them, or TOML (`FILE.toml`), where tables
   and dotted keys spell the dots of a name: `[log.retention]` with `hours = 24` is `log.retention.hours`;
2. the environment: `KLAMM_LOG_RETENTION_HOURS=24`;
3. flags: `klamm up --set log.retention.hours=24`.

An unknown key or a value out of bounds stops the start with one line that says where it was written, what it
may be and which known key is nearest. A key that says *cluster-wide* can be changed while the broker runs,
for one broker or for all, with any Kafka admin client (IncrementalAlterConfigs); what is set so survives a
restart and comes before files, environment and flags.

Every key that Kafka 4.3 knows is known here. [Those without effect](#keys-without-effect) stand at the end.
"""

_WITHOUT_EFFECT = """\
## Keys without effect

Files and tools written for Kafka set these keys, so they are checked against Kafka's types and bounds, and
DescribeConfigs answers them with Kafka's defaults. They change nothing; a broker names those that are set in
one line when it starts. Where ignoring a key would break a promise, only its default is accepted: any other
value stops the start, and is refused when a running broker or a topic is altered.
"""


_CLIENT_INTRODUCTION = """\
# Configuration of clients

This file is made from the rows in `src/klamm/config/client_keys.py` by
`scripts/config_reference.py client`.

Names and bounds are those of Kafka's own clients; a default that differs says so. A client takes settings,
the later winning, from

1. `config=`: a mapping, or the path of a file: Java properties as Kafka has them, or TOML (`FILE.toml`),
   where tables and dotted keys spell the dots of a name: `[session.timeout]` with `ms = 10000`;
2. keyword arguments, with underscores for dots: `linger_ms=5` is `linger.ms`;
3. the arguments with names of their own: the address (`bootstrap.servers`), and a consumer's `group`
   (`group.id`) and `start` (`auto.offset.reset`).

```python
klamm.Producer("localhost:9092", compression_type="zstd", linger_ms=5)
klamm.Producer(config={"bootstrap.servers": "localhost:9092", "compression.type": "zstd"})
klamm.Producer(config="producer.properties", linger_ms=5)
```

A mapping may use either spelling. An unknown key is refused with the nearest known one, a value out of bounds
with what it may be, and one from a file with its line.
"""


def render_client() -> str:
    """The document about clients' keys."""
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
            "An admin has the keys of every client and no others.",
            "",
        ]
    )


def render() -> str:
    """The document about brokers, topics and groups."""
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
    """The keys that change nothing, under the sentence that says why."""
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
    """A table of keys: with when they may change (brokers), or with the names of arguments (clients)."""
    heads = ["key", *(["argument"] if arguments else []), "default", "may be"]
    heads += ["changes"] if changeable else []
    lines = [f"## {title}", "", "| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in sorted(rows, key=lambda row: row.name):
        if row.internal:
            continue
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
