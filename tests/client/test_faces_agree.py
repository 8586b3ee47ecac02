"""The asyncio and the plain face have the same methods with the same arguments, defaults and words."""

from __future__ import annotations

import inspect
import pydoc

import pytest

import klamm
import klamm.aio
from klamm.client.options import ClientOptions
from klamm.config.client_config import KEYS_BY_KIND

PAIRS = [(getattr(klamm.aio, name), getattr(klamm, name)) for name in ("Producer", "Consumer", "Admin")]

# What waits in one face and refuses in the other says so.
DIFFERENT_WORDS = {"start", "close", "send", "send_arrow", "sessions"}


def public(client):
    return {
        name: method
        for name, method in inspect.getmembers(client)
        if callable(method) and (not name.startswith("_") or name == "__init__")
    }


def arguments(method):
    """Names, kinds, defaults and types; what it returns is awaited in one face only."""
    signature = inspect.signature(method)
    return [(one.name, one.kind, one.default, str(one.annotation)) for one in signature.parameters.values()]


@pytest.mark.parametrize(("aio", "plain"), PAIRS, ids=lambda one: one.__name__)
def test_the_same_methods(aio, plain):
    assert set(public(aio)) == set(public(plain))


def results(method):
    return str(inspect.signature(method).return_annotation)


METHODS = [
    pytest.param(aio, plain, name, id=f"{aio.__name__}.{name}")
    for aio, plain in PAIRS
    for name in public(aio)
]


@pytest.mark.parametrize(("aio", "plain", "name"), METHODS)
def test_the_same_arguments(aio, plain, name):
    assert arguments(getattr(aio, name)) == arguments(getattr(plain, name))


@pytest.mark.parametrize(("aio", "plain", "name"), METHODS)
def test_the_same_words(aio, plain, name):
    words = [inspect.getdoc(face if name == "__init__" else getattr(face, name)) for face in (aio, plain)]
    assert all(words), f"{aio.__name__}.{name} has no docstring"
    assert words[0] == words[1] or name in DIFFERENT_WORDS


@pytest.mark.parametrize("name", ["close", "partitions_for", "counters", "start"])
def test_what_several_kinds_of_clients_have_is_called_alike(name):
    """Whoever knows a producer knows how an admin or a consumer is closed."""
    found = {
        (*arguments(getattr(client, name)), results(getattr(client, name)))
        for pair in PAIRS
        for client in pair
    }
    assert len(found) == 1


@pytest.mark.parametrize(
    "name",
    [
        *("assign", "pause", "resume", "seek_to_beginning", "seek_to_end"),
        *("committed", "beginning_offsets", "end_offsets", "lag"),
    ],
)
@pytest.mark.parametrize("consumer", PAIRS[1], ids=lambda one: one.__module__)
def test_methods_of_consumers_take_partitions_alike(consumer, name):
    """One by one, or as one list."""
    (_, partitions) = inspect.signature(getattr(consumer, name)).parameters.values()
    assert partitions.kind is inspect.Parameter.VAR_POSITIONAL
    assert str(partitions.annotation) == "PartitionsLike"


def test_what_the_plain_admin_forwards_looks_written_out():
    """Editors and `help` show the arguments and the words, and it is no coroutine."""
    create = klamm.Admin.create_topic
    assert "replication_factor: 'int | None' = None" in str(inspect.signature(create))
    assert inspect.getdoc(create).startswith("Create a topic, and return when it can be used.")
    assert not inspect.iscoroutinefunction(create) and create.__name__ == "create_topic"
    shown = pydoc.render_doc(klamm.Admin, renderer=pydoc.plaintext)
    assert "create_topic(self, name: 'str', partitions: 'int | None' = None" in shown


@pytest.mark.parametrize(("aio", "plain"), PAIRS, ids=lambda one: one.__name__)
def test_options_are_the_rows(aio, plain):
    """What type checkers know of `**options` is what the configuration takes."""
    kind = aio.__name__.lower()
    module = inspect.getmodule(aio)
    options = getattr(module, f"{aio.__name__}Options", ClientOptions)  # an admin has no others
    own_arguments = set(inspect.signature(aio).parameters) - {"options"}
    rows = {name.replace(".", "_") for name in KEYS_BY_KIND[kind]}
    functions = {"sasl_oauth_token_provider"}  # which no file could hold
    assert set(options.__annotations__) == (rows | functions) - own_arguments
