"""Reads configuration files: Java properties, which Kafka uses, and TOML.

Both become a list of settings, each with the number of its line, so that an error can name the line.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import NamedTuple

from klamm.config.rows import ConfigError

# A configuration has a few kilobytes; a file larger than this was given by mistake.
MAX_FILE_BYTES = 1 << 20

_SIMPLE_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_UNICODE_ESCAPE = re.compile(r"[0-9a-fA-F]{4}")
_TOML_TABLE = re.compile(r"\s*\[([^\[\]]+)\]\s*(?:#.*)?$")
_TOML_KEY = re.compile(r"""\s*((?:"[^"]*"|'[^']*'|[A-Za-z0-9_.\-\s])+?)\s*=""")


class Setting(NamedTuple):
    name: str
    text: str
    line: int


def read_config_file(path: Path) -> list[Setting]:
    """The settings of a `.toml` file or of a properties file (any other name)."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"the configuration file {path} cannot be read: {error.strerror}", key=str(path)
        ) from None
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(
            f"the configuration file {path} is larger than {MAX_FILE_BYTES} bytes, so it is not read",
            key=str(path),
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"the configuration file {path} is not UTF-8: {error}", key=str(path)) from None
    try:
        return parse_toml(text) if path.suffix == ".toml" else parse_properties(text)
    except ConfigError as error:
        raise error.at(str(path)) from None


def parse_properties(text: str) -> list[Setting]:
    """The settings in a text of Java properties. A key that occurs twice is returned twice; the last one
    counts."""
    settings: list[Setting] = []
    lines = text.splitlines()
    index = 0
    while index < len(lines):
        first_line = index + 1
        logical = lines[index].lstrip(" \t\f")
        index += 1
        if not logical or logical[0] in "#!":
            continue
        while _continues(logical) and index < len(lines):
            logical = logical[:-1] + lines[index].lstrip(" \t\f")
            index += 1
        if _continues(logical):
            logical = logical[:-1]
        name, value = _split_property(logical)
        settings.append(Setting(name, value, first_line))
    return settings


def _continues(line: str) -> bool:
    """True if the next line continues this one: it ends in an odd number of backslashes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split_property(line: str) -> tuple[str, str]:
    """Key and value: the key ends at the first unescaped `=`, `:` or blank."""
    index = 0
    while index < len(line) and line[index] not in "=: \t\f":
        index += 2 if line[index] == "\\" else 1
    rest = line[index:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return _unescape(line[:index]), _unescape(rest)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    index = 0
    while index < len(text):
        character = text[index]
        index += 1
        if character != "\\" or index == len(text):
            out.append(character)
            continue
        escaped = text[index]
        index += 1
        if escaped == "u" and _UNICODE_ESCAPE.match(text, index):
            out.append(chr(int(text[index : index + 4], 16)))
            index += 4
        else:
            out.append(_SIMPLE_ESCAPES.get(escaped, escaped))
    return "".join(out)


def parse_toml(text: str) -> list[Setting]:
    """The settings in a TOML text. `[log.retention]` with `hours = 24` and `log.retention.hours = 24` are the
    same."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the file is not valid TOML: {error}", key="") from None
    lines = _toml_lines(text)
    return [Setting(name, value, lines.get(name, 1)) for name, value in _flatten("", document)]


def _flatten(prefix: str, value: object) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        flat: list[tuple[str, str]] = []
        for key, each in value.items():
            flat += _flatten(f"{prefix}.{key}" if prefix else str(key), each)
        return flat
    if isinstance(value, bool):
        return [(prefix, "true" if value else "false")]
    if isinstance(value, str | int | float):
        return [(prefix, str(value))]
    if isinstance(value, list) and all(isinstance(each, str | int | float) for each in value):
        return [(prefix, ",".join(map(str, value)))]
    raise ConfigError(
        f"{prefix}={value!r} is refused: it must be a string, a number, true, false, or a list of these",
        key=prefix,
    )


def _toml_lines(text: str) -> dict[str, int]:
    """The line of each key, found by a search of the text, because `tomllib` does not return line numbers."""
    lines: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        if match := _TOML_TABLE.match(line):
            table = _bare(match[1])
        elif match := _TOML_KEY.match(line):
            key = _bare(match[1])
            lines[f"{table}.{key}" if table else key] = number
    return lines


def _bare(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))
