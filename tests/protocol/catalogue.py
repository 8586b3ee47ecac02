"""Every message that is declared, in every version, for tests to run over."""

from __future__ import annotations

import pkgutil
from importlib import import_module

import pytest

from klamm.protocol import messages
from klamm.protocol.schema import Message


def _declared_messages() -> list[type[Message]]:
    found: dict[str, type[Message]] = {}
    for module_info in pkgutil.iter_modules(messages.__path__):
        module = import_module(f"{messages.__name__}.{module_info.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Message) and value is not Message:
                found[value.__name__] = value
    return list(found.values())


MESSAGES = _declared_messages()


def versions_of(message: type[Message]) -> range:
    return range(message.__valid_versions__.first, message.__valid_versions__.last + 1)


VERSIONS = [(message, version) for message in MESSAGES for version in versions_of(message)]


def _is_edge(message: type[Message], version: int) -> bool:
    return version in (message.__valid_versions__.first, message.__valid_versions__.last)


every_version = pytest.mark.parametrize(
    ("message", "version"),
    [
        pytest.param(
            message,
            version,
            id=f"{message.__name__}-v{version}",
            marks=() if _is_edge(message, version) else pytest.mark.long,
        )
        for message, version in VERSIONS
    ],
)
"""For tests of the codec: `make test` takes the oldest and the newest version of each message. `test_kio.py`
shows that every version has the fields that it should have."""
