"""`ConfigRow`: the name, type, default, bounds and documentation of one configuration key.

A key is described only in its row. Files, environment variables and flags are checked against the rows,
DescribeConfigs answers from them, and docs/CONFIGURATION.md is written from them. Names, types, bounds and
defaults are Kafka's if Kafka has the key. Keys that only Klamm has start with `klamm.`.

A value has two forms: the text that a user writes and the metadata store keeps, and the typed value that the
code reads. Only `ConfigRow.parse` turns text into a typed value, so a typed value is always within its
bounds.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple

from klamm.model.errors import ClientError

ConfigValue = bool | int | float | str | tuple[str, ...] | None

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class ConfigType(IntEnum):
    """The types of values; the numbers are those of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


_INTEGER_RANGES = {
    ConfigType.INT: (-(2**31), INT_MAX),
    ConfigType.SHORT: (-(2**15), 2**15 - 1),
    ConfigType.LONG: (-(2**63), LONG_MAX),
}


class UpdateMode(Enum):
    """How a broker key can change while brokers run: not at all, per broker, or per broker and for all."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"


class Importance(Enum):
    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class ResourceType(IntEnum):
    """The kinds of resources that have a configuration; the numbers are those of the protocol."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Where an effective value comes from; the numbers are those of DescribeConfigs."""

    DYNAMIC_TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_GROUP = 8


class Synonym(NamedTuple):
    """A key whose value, times `factor`, counts while the row's own key is unset."""

    name: str
    factor: int = 1


class ConfigError(ClientError, ValueError):
    """A key or a value that is refused. The text is one line that says what is wrong and what is allowed."""

    def __init__(self, problem: str, *, key: str, origin: str | None = None) -> None:
        super().__init__(f"{origin}: {problem}" if origin else problem)
        self.problem = problem
        self.key = key

    def at(self, origin: str) -> ConfigError:
        """The same error with the place where the value was written, such as a file and a line."""
        return ConfigError(self.problem, key=self.key, origin=origin)


@dataclass(frozen=True, slots=True)
class ConfigRow:
    """One key. `minimum`, `maximum`, `choices` and `also_allowed` bound its values.

    For a string, `minimum` is the least number of characters. `aliases` maps other spellings to choices; only
    lists have aliases. While the key is unset, the first of its `synonyms` that is set counts. Synonyms are
    broker keys, also those of a topic key or a group key. DescribeConfigs lists an `internal` key only while
    it is set.

    A key with `honoured=False` is accepted, so that files and tools written for Kafka work, and its `doc`
    says that it has no effect. If ignoring its value would be dangerous, as with TLS, `refused_because` says
    why, and every value except the default is refused.
    """

    name: str
    type: ConfigType
    default: ConfigValue
    doc: str
    importance: Importance = Importance.MEDIUM
    update_mode: UpdateMode = UpdateMode.READ_ONLY
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()
    also_allowed: tuple[int, ...] = ()
    synonyms: tuple[Synonym, ...] = ()
    internal: bool = False
    honoured: bool = True
    refused_because: str = ""

    @property
    def sensitive(self) -> bool:
        """True if no response, error or log line may show the value."""
        return self.type is ConfigType.PASSWORD

    def parse(self, text: str) -> ConfigValue:
        """The typed value of `text`, or a ConfigError that names the key, the value and the bounds."""
        value = self._parse(text)
        if self.refused_because and value != self.default:
            shown = self.name if self.sensitive else f"{self.name}={text.strip()!r}"
            raise ConfigError(f"{shown} is refused: {self.refused_because}", key=self.name)
        return value

    def _parse(self, text: str) -> ConfigValue:
        if self.type is ConfigType.PASSWORD:
            return text  # a password may begin or end with a space
        text = text.strip()
        if self.type is ConfigType.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise self._refusal(text)
            return text.lower() == "true"
        if self.type in (ConfigType.STRING, ConfigType.CLASS):
            if (self.choices and text not in self.choices) or len(text) < (self.minimum or 0):
                raise self._refusal(text)
            return text
        if self.type is ConfigType.LIST:
            aliases = dict(self.aliases)
            parts = (part.strip() for part in text.split(","))
            items = tuple(aliases.get(part, part) for part in parts if part)
            if self.choices and any(item not in self.choices for item in items):
                raise self._refusal(text)
            return tuple(dict.fromkeys(items))
        return self._parse_number(text)

    def _parse_number(self, text: str) -> int | float:
        number: int | float
        try:
            # int() would take "1_000" and Arabic digits too; Kafka and its files do not.
            if not text.isascii() or "_" in text:
                raise ValueError
            number = float(text) if self.type is ConfigType.DOUBLE else int(text)
        except ValueError:
            raise self._refusal(text) from None
        if number in self.also_allowed:
            return number
        low, high = self._bounds()
        if not low <= number <= high:
            raise self._refusal(text)
        return number

    def _bounds(self) -> tuple[float, float]:
        low, high = _INTEGER_RANGES.get(self.type, (-math.inf, math.inf))
        return (
            low if self.minimum is None else self.minimum,
            high if self.maximum is None else self.maximum,
        )

    def _refusal(self, text: str) -> ConfigError:
        return ConfigError(f"{self.name}={text!r} is refused: it must be {self.bounds_text()}", key=self.name)

    def bounds_text(self) -> str:
        """What a value must be, in words."""
        if self.type is ConfigType.BOOLEAN:
            return "true or false"
        if self.type is ConfigType.CLASS:
            return "the name of a class"
        if self.type in (ConfigType.STRING, ConfigType.PASSWORD):
            choices = ", ".join(choice or "nothing" for choice in self.choices)
            if choices:
                return f"one of {choices}"
            return "a string that is not empty" if self.minimum else "a string"
        if self.type is ConfigType.LIST:
            return f"a comma-separated list of {', '.join(self.choices)}" if self.choices else "a list"
        kind = "a number" if self.type is ConfigType.DOUBLE else "a whole number"
        low, high = self._bounds()
        if low == -math.inf and high == math.inf:
            return kind
        words = f"{kind} from {low:g}" if self.type is ConfigType.DOUBLE else f"{kind} from {int(low)}"
        words += f" to {high:g}" if self.type is ConfigType.DOUBLE else f" to {int(high)}"
        if self.also_allowed:
            words += f", or {', '.join(map(str, self.also_allowed))}"
        return words

    def text_of(self, value: ConfigValue) -> str | None:
        """The text that parses to `value`; None for an unset key."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value) if self.type is not ConfigType.DOUBLE else _java_double(float(value))


def _java_double(number: float) -> str:
    """A number as Java prints it: 0.5, 1.0E7, 1.7976931348623157E308."""
    from decimal import Decimal  # imported here: needed only to describe the few keys of type DOUBLE

    if number == 0 or 1e-3 <= abs(number) < 1e7 or not math.isfinite(number):
        return repr(float(number))
    sign, digits, exponent = Decimal(repr(float(number))).normalize().as_tuple()
    assert isinstance(exponent, int)
    first, *rest = map(str, digits)
    return f"{'-' * sign}{first}.{''.join(rest) or '0'}E{exponent + len(rest)}"


RowTable = Mapping[str, ConfigRow]


def table(rows: Iterable[ConfigRow]) -> dict[str, ConfigRow]:
    """The rows by name, in the order given."""
    by_name: dict[str, ConfigRow] = {}
    for row in rows:
        assert row.name not in by_name, f"two rows for {row.name}"
        by_name[row.name] = row
    return by_name


def find_row(rows: RowTable, name: str, kind: str) -> ConfigRow:
    """The row of `name`. Raises ConfigError for an unknown key, with its `kind` and the nearest known key."""
    row = rows.get(name)
    if row is not None:
        return row
    nearest = difflib.get_close_matches(name, rows, n=1, cutoff=0.6)
    hint = f"; the nearest known key is {nearest[0]}" if nearest else ""
    raise ConfigError(f"unknown {kind} configuration key {name!r}{hint}", key=name)
