"""Writes docs/CLIENT_REFERENCE.md from the docstrings of src/klamm/client.

    .venv/bin/python scripts/client_reference.py > docs/CLIENT_REFERENCE.md

A test compares the file with the output of this script, so the document is always up to date.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import klamm
from klamm.client import errors, results
from klamm.client.admin import admin, types
from klamm.client.consumer import consumer
from klamm.client.consumer.group import sessions
from klamm.client.counters import COUNTERS
from klamm.client.plain import admin as plain_admin
from klamm.client.plain import consumer as plain_consumer
from klamm.client.plain import producer as plain_producer
from klamm.client.plain import sessions as plain_sessions
from klamm.client.producer import delivery, producer

_INTRODUCTION = """\
# Reference of the client

This file is made from docstrings by `scripts/client_reference.py`. The guide is [CLIENT.md](CLIENT.md);
settings are in [CLIENT_CONFIGURATION.md](CLIENT_CONFIGURATION.md).

`klamm` has the plain clients, whose methods block and may be called from any thread; `klamm.aio` has clients
of the same names, methods and arguments for asyncio. Below are the plain signatures. *Awaited* says that the
method is a coroutine in `klamm.aio`. Times and time-outs are in seconds, timestamps in milliseconds since
1970.

| in signatures | what it stands for |
|---|---|
| `Bootstrap` | `"host:port,host:port"`, or a list of addresses |
| `ConfigGiven` | a mapping from names to values, or the path of a properties or TOML file |
| `Topics` | the name of a topic, several names, or a compiled pattern |
| `Start` | `"earliest"`, `"latest"`, `"none"`, a datetime with a time zone, or a timedelta (that long ago) |
| `PartitionLike`, `PartitionT` | a `TopicPartition`, or a `(topic, partition)` tuple |
| `TimeLike` | milliseconds, or a datetime with a time zone |
| `BytesLike` | bytes, a bytearray or a memoryview |
| `HeadersGiven` | pairs of a name and bytes, or a mapping |
| `Listener` | a function that gets a set of partitions |
| `SettingValue` | a text, a number, true or false, or a list of texts |
| `OffsetSpec` | `"earliest"`, `"latest"`, `"max_timestamp"`, or a `TimeLike` |
"""

_ERRORS = """\
All are in `klamm` and in `klamm.errors`. Every ClientError has `code` (the broker's error code, or None when
no broker was involved), `retriable` (whether the same call may succeed later without a change) and `advice`
(what to do, which is part of the text, too).
"""

_WIDTH = 100

_PAIRS: tuple[tuple[str, Any, Any], ...] = (
    ("Producer", plain_producer.Producer, producer.Producer),
    ("Delivery", plain_producer.Delivery, producer.Delivery),
    ("RangesDelivery", plain_producer.RangesDelivery, producer.RangesDelivery),
    ("Consumer", plain_consumer.Consumer, consumer.Consumer),
    ("Session", plain_sessions.Session, sessions.Session),
    ("Claim", plain_sessions.Claim, sessions.Claim),
    ("Admin", plain_admin.Admin, admin.Admin),
)
"""The classes with methods, plain and asyncio."""

_NOT_MADE = ("Delivery", "RangesDelivery", "Session", "Claim")
"""Classes that methods return and users do not construct."""


def render() -> str:
    """The whole document."""
    parts = [_INTRODUCTION]
    for name, plain, aio in _PAIRS:
        parts += _class(name, plain, aio)
    parts += ["## Values", ""]
    parts += [line for value in (klamm.TopicPartition, *_values()) for line in _value(value)]
    parts += [f"- `{one.__name__}`: {', '.join(each.name for each in one)}" for one in _ENUMERATIONS]
    parts += ["", "## Errors", "", _ERRORS, *_errors(), ""]
    parts += ["## Counters", "", "What `counters()` returns. Those of another kind of client stay 0.", ""]
    parts += ["| counter | what it counts |", "|---|---|"]
    parts += [f"| `{name}` | {doc} |" for name, doc in COUNTERS.items()]
    return "\n".join(parts) + "\n"


# ---- clients


def _class(name: str, plain: type, aio: type) -> Iterator[str]:
    yield from (f"## {name}", "")
    if name not in _NOT_MADE:
        yield from (*_signature(f"klamm.{name}", plain), "")
    yield from (inspect.getdoc(plain) or "", "")
    if properties := [*_properties(plain)]:
        yield from (*properties, "")
    for method, original in _methods(aio).items():
        yield from (f"### {name}.{method}", "", *_signature(method, getattr(plain, method)), "")
        yield from _words(getattr(plain, method), original)


def _methods(cls: type) -> dict[str, Any]:
    """Public methods, those of the bases first, in the order of the source."""
    found = {}
    for one in reversed(cls.__mro__):
        for name, method in vars(one).items():
            if not name.startswith("_") and inspect.isfunction(method):
                found[name] = getattr(cls, name)
    return found


def _words(plain: Callable[..., Any], aio: Callable[..., Any]) -> Iterator[str]:
    """What both say, and the paragraphs that the asyncio face says otherwise."""
    said = inspect.getdoc(plain) or ""
    yield from (said, "")
    others = [one for one in (inspect.getdoc(aio) or "").split("\n\n") if one not in said]
    if others:
        yield from ("With asyncio: " + "\n\n".join(others), "")
    if inspect.iscoroutinefunction(aio):
        yield from ("*Awaited.*", "")


def _signature(name: str, callable_: Callable[..., Any]) -> list[str]:
    """How it is called, on one line if it fits."""
    signature = inspect.signature(callable_)
    returned = "" if inspect.isclass(callable_) else f" -> {signature.return_annotation}"
    arguments = list(_arguments(signature))
    line = f"{name}({', '.join(arguments)}){returned}"
    if len(line) > _WIDTH:
        line = "\n".join([f"{name}(", *(f"    {one}," for one in arguments), f"){returned}"])
    return ["```python", line, "```"]


def _arguments(signature: inspect.Signature) -> Iterator[str]:
    """Each argument as it is written in the source; a star before those that must be named."""
    starred = False
    for one in signature.parameters.values():
        if one.name == "self":
            continue
        if one.kind is one.VAR_POSITIONAL:
            starred = True
        if one.kind is one.KEYWORD_ONLY and not starred:
            starred = True
            yield "*"
        stars = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
        default = "" if one.default is one.empty else f" = {one.default!r}".replace("<factory>", "{}")
        annotation = getattr(one.annotation, "__forward_arg__", one.annotation)
        yield f"{stars}{one.name}: {annotation}{default}"


# ---- values, errors


_ENUMERATIONS = (types.ResourceType, types.ConfigSource, types.ConfigType)


def _values() -> Iterator[type]:
    for module in (results, delivery, types):
        for value in vars(module).values():
            is_own = inspect.isclass(value) and value.__module__ == module.__name__
            if is_own and value.__name__ in klamm.__all__:
                yield value


def _value(value: type) -> Iterator[str]:
    yield from (f"### {value.__name__}", "")
    words = inspect.getdoc(value) or ""
    if not words.startswith(f"{value.__name__}("):  # what dataclasses say by themselves
        yield from (words, "")
    yield from (f"- `{one}`" for one in _arguments(inspect.signature(value)))
    yield from _properties(value)
    for name, member in vars(value).items():
        if isinstance(member, classmethod) and not name.startswith("_"):
            arguments = ", ".join(_arguments(inspect.signature(getattr(value, name))))
            yield f"- `{value.__name__}.{name}({arguments})`: {inspect.getdoc(member)}"
    yield ""


def _properties(cls: type) -> Iterator[str]:
    for one in reversed(cls.__mro__):
        for name, member in vars(one).items():
            if isinstance(member, property) and not name.startswith("_"):
                yield f"- `{name}`: {inspect.getdoc(member)}"


def _errors() -> Iterator[str]:
    yield from ("| error | what it says | a retry helps |", "|---|---|---|")

    def rows(cls: type[errors.ClientError], depth: int) -> Iterator[str]:
        for one in sorted(cls.__subclasses__(), key=lambda each: each.__name__):
            if one.__name__ not in klamm.__all__:
                continue
            retries = (
                "by its code" if issubclass(one, errors.BrokerError) else "yes" if one.retriable else "no"
            )
            retries = "if all of them" if one is errors.BatchFailed else retries
            indent = "&nbsp;&nbsp;" * depth
            yield f"| {indent}`{one.__name__}` | {(inspect.getdoc(one) or '').splitlines()[0]} | {retries} |"
            yield from rows(one, depth + 1)

    yield f"| `ClientError` | {(inspect.getdoc(errors.ClientError) or '').splitlines()[0]} | |"
    yield from rows(errors.ClientError, 1)


if __name__ == "__main__":
    sys.stdout.write(render())
