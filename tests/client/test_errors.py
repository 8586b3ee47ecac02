"""Errors as users handle them: caught by Python's own names for such things, and sent to other processes."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest

import klamm
from klamm.client import errors
from klamm.client.errors import BrokerError, ClientError, LocalRecordTooLarge
from klamm.config.rows import ConfigError

CLASSES = sorted(
    {
        one
        for one in [*vars(errors).values(), *(getattr(klamm, name) for name in klamm.__all__)]
        if inspect.isclass(one) and issubclass(one, BaseException)
    },
    key=lambda one: one.__name__,
)


def example(kind: type[BaseException]) -> BaseException:
    """One error of a class, with all that its maker can say."""
    if kind is ConfigError:
        return ConfigError("linger.ms=x is refused", key="linger.ms", origin="a.properties, line 3")
    if issubclass(kind, errors.BatchFailed):
        failed = BrokerError.of(3, "describing topic 'b'", "no such topic")
        return kind("describing topics", {"a": klamm.TopicPartition("a", 0)}, {"b": failed})
    if issubclass(kind, errors.TimedOut):
        cause = errors.ConnectionFailed("host:9092 closed the connection", advice="Look at it")
        return kind("looking for it", 1.5, cause=cause, advice="Wait longer")
    if kind is LocalRecordTooLarge:
        return kind("too large", advice="Send less")
    if issubclass(kind, BrokerError):
        return kind("it failed", code=klamm.ErrorCode.NOT_LEADER_OR_FOLLOWER, advice="Try again")
    if issubclass(kind, ClientError):
        return kind("it failed", advice="Try again")
    return kind("it failed")


def told(error: BaseException) -> object:
    """All that an error says, with the errors inside of it."""
    attributes = {
        name: told(value) if isinstance(value, BaseException) else value
        for name, value in vars(error).items()
    }
    if isinstance(error, errors.BatchFailed):
        attributes["errors"] = {name: told(inner) for name, inner in error.errors.items()}
    return type(error), str(error), error.args, attributes, getattr(error, "retriable", None)


@pytest.mark.parametrize("kind", CLASSES, ids=lambda one: one.__name__)
@pytest.mark.parametrize(
    "again",
    [lambda one: pickle.loads(pickle.dumps(one)), copy.copy, copy.deepcopy],
    ids=("pickle", "copy", "deep"),
)
def test_errors_survive_pickling_and_copying(kind, again):
    error = example(kind)
    assert told(again(error)) == told(error)


def test_what_an_error_was_told_later_survives_too():
    error = errors.NotKafka("it hung up")
    error.retriable = True
    assert pickle.loads(pickle.dumps(error)).retriable


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (klamm.TimedOut, TimeoutError),
        (klamm.DeliveryTimedOut, TimeoutError),
        (klamm.ConnectionFailed, ConnectionError),
        (klamm.NoBrokerReachable, ConnectionError),
        (klamm.NotSerializable, TypeError),
        (klamm.ConfigError, ValueError),
    ],
)
def test_errors_are_what_python_calls_them(kind, builtin):
    assert issubclass(kind, builtin) and issubclass(kind, klamm.ClientError)


def test_a_wrong_setting_is_caught_with_all_others():
    with pytest.raises(klamm.ClientError, match="lingerms") as caught:
        klamm.Producer("localhost:9092", lingerms=5)
    assert isinstance(caught.value, klamm.ConfigError) and not caught.value.retriable
