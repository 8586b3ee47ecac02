"""Writes docs/CONFIGURATION.md from the rows: `python -m klamm.config.reference > docs/CONFIGURATION.md`.

A test compares the file with what this makes, so the document cannot fall behind.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from klamm.config.broker_keys import BROKER_KEYS
from klamm.config.group_keys import GROUP_KEYS
from klamm.config.rows import INT_MAX, LONG_MAX, ConfigRow, ConfigType
from klamm.config.topic_keys import TOPIC_KEYS

_INTRODUCTION = """\
# Configuration

This file is made from the rows in `src/klamm/config/` by `python -m klamm.config.reference`.

Names, types and defaults are Kafka's. A broker reads them, the later winning, from

1. a file (`klamm up --config FILE`): Java properties as Kafka has them, or TOML (`FILE.toml`), where tables
   and dotted keys spell the dots of a name: `[log.retention]` with `hours = 24` is `log.retention.hours`;
2. the environment: `KLAMM_LOG_RETENTION_HOURS=24`;
3. flags: `klamm up --set log.retention.hours=24`.

An unknown key or a value out of bounds stops the start with one line that says where it was written, what it
may be and which known key is nearest. A key that says *cluster-wide* can be changed while the broker runs,
for one broker or for all, with any Kafka admin client (IncrementalAlterConfigs); what is set so survives a
restart and comes before files, environment and flags.
"""


def render() -> str:
    """The whole document."""
    return "\n".join(
        [
            _INTRODUCTION,
            *_section("Broker keys", BROKER_KEYS.values(), changeable=True),
            *_section("Topic keys", TOPIC_KEYS.values(), changeable=False),
            *_section("Group keys", GROUP_KEYS.values(), changeable=False),
            "## Accepted, without effect",
            "",
            "Files and tools written for Kafka set these, so they are taken; they change nothing yet.",
            "",
            *(
                f"- `{row.name}` ({kind})"
                for kind, rows in (("broker", BROKER_KEYS), ("topic", TOPIC_KEYS), ("group", GROUP_KEYS))
                for row in rows.values()
                if not row.honoured
            ),
            "",
        ]
    )


def _section(title: str, rows: Iterable[ConfigRow], *, changeable: bool) -> list[str]:
    lines = [f"## {title}", "", "| key | default | may be |" + (" changes |" if changeable else ""), ""]
    lines[-1] = "|---|---|---|" + ("---|" if changeable else "")
    for row in sorted(rows, key=lambda row: row.name):
        if row.internal:
            continue
        cells = [f"`{row.name}`<br>{row.doc}{_fallback(row)}", _default(row), _bounds(row)]
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
    return f"`{text}`"


def _bounds(row: ConfigRow) -> str:
    words = row.bounds_text()
    for number in (LONG_MAX, INT_MAX):
        words = words.replace(f" to {number}", " up")
    return words.replace(f"from {-LONG_MAX - 1} up", "").strip()


if __name__ == "__main__":
    sys.stdout.write(render())
