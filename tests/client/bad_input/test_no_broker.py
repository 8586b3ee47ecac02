"""No broker at the address that was given: nobody there, nobody who answers, somebody else."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import klamm
from tests.client.bad_input.bounded import (
    SHORT,
    administer,
    all_at_once,
    consume_one,
    failure_of,
    iterate,
    poll_for_ever,
    poll_group,
    produce_one,
)
from tests.client.bad_input.servers import (
    HANDLERS,
    Handler,
    black_hole,
    closed_port,
    closes_at_once,
    says_nothing,
    serving,
)
from tests.client.faces import Face
from tests.client.topics import make_topic

Address = contextlib.AbstractContextManager[str]


def failures_at(face: Face, address: str, **options: object) -> list[klamm.ClientError]:
    """Those of a producer, of a consumer, of an admin, and of a group that polls."""
    failures = all_at_once(
        partial(produce_one, face, address, **options),
        partial(consume_one, face, address, **options),
        partial(administer, face, address, **options),
        partial(poll_group, face, address, **options),
    )
    for failure in failures:
        assert failure is not None, f"{address} is no broker, and nobody minded"
        assert address in str(failure), f"the address is missing in: {failure}"
    return [failure for failure in failures if failure is not None]


WAYS: dict[str, Callable[[Any], object]] = {
    "poll": lambda consumer: consumer.poll(),
    "short polls": poll_for_ever,
    "iteration": iterate,
    "poll_arrow": lambda consumer: consumer.poll_arrow(),
}


@pytest.mark.parametrize("has_group", [True, False], ids=["group", "alone"])
def test_whoever_polls_is_told(face: Face, has_group: bool) -> None:
    """Within default_api_timeout_ms, however it polls; and again after as long."""
    group = {"group": "g"} if has_group else {}

    def poll_twice(way: Callable[[Any], object], address: str) -> None:
        with face.consumer(address, topics=["topic"], **group, **SHORT) as consumer:
            for _ in range(2):
                failure = failure_of(partial(way, consumer))
                assert isinstance(failure, klamm.NoBrokerReachable)
                assert failure.retriable and address in str(failure)

    with closed_port() as address:
        all_at_once(*(partial(poll_twice, way, address) for way in WAYS.values()), within_s=60)


def causes(failure: klamm.ClientError) -> set[type]:
    """The error and what it says was its cause."""
    found: set[type] = set()
    one: BaseException | None = failure
    while one is not None:
        found.add(type(one))
        one = getattr(one, "cause", None) or one.__cause__
    return found


@pytest.mark.parametrize("place", [closed_port, black_hole], ids=lambda place: place.__name__)
def test_nobody_there(face: Face, place: object) -> None:
    with place() as address:  # type: ignore[operator]
        for failure in failures_at(face, address):
            assert failure.retriable
            assert causes(failure) & {klamm.NoBrokerReachable, klamm.ConnectionFailed}


@pytest.mark.parametrize("handler", HANDLERS, ids=lambda handler: handler.__name__)
def test_somebody_else(face: Face, handler: Handler) -> None:
    with serving(handler) as address:
        for failure in failures_at(face, address):
            if handler not in (closes_at_once, says_nothing):
                assert klamm.NotKafka in causes(failure), repr(failure)
                assert not failure.retriable


def test_a_broker_without_tls(face: Face, bootstrap: str) -> None:
    for failure in failures_at(face, bootstrap, security_protocol="SSL"):
        assert klamm.TlsFailed in causes(failure), repr(failure)
        assert not failure.retriable


def test_a_broker_without_sasl(face: Face, bootstrap: str) -> None:
    login = {"sasl_mechanism": "PLAIN", "sasl_username": "me", "sasl_password": "secret"}
    for failure in failures_at(face, bootstrap, security_protocol="SASL_PLAINTEXT", **login):
        assert not failure.retriable
        assert "secret" not in str(failure)


@pytest.mark.parametrize(
    "address",
    ["", "localhost", "localhost:", "localhost:kafka", "localhost:99999", "localhost:-1", ":9092"],
)
def test_addresses_that_are_none(face: Face, address: str) -> None:
    for make in (face.producer, face.consumer, face.admin):
        with pytest.raises((klamm.ConfigError, klamm.ClientError)):
            make(address)


def test_a_host_without_an_address(face: Face) -> None:
    """RFC 6761: names below `invalid` never exist."""
    for failure in failures_at(face, "broker.invalid:9092"):
        assert causes(failure) & {klamm.NoBrokerReachable, klamm.ConnectionFailed}


def test_one_good_address_is_enough(face: Face, bootstrap: str) -> None:
    """Among others that are wrong in every way."""
    topic = make_topic(bootstrap)
    with closed_port() as closed, serving(closes_at_once) as closing, black_hole() as hole:
        addresses = ",".join([closed, closing, hole, bootstrap])
        patient = {"default_api_timeout_ms": 10_000, "request_timeout_ms": 10_000}
        calls = (
            partial(produce_one, face, addresses, topic, max_block_ms=10_000, **patient),
            partial(consume_one, face, addresses, topic, **patient),
            partial(administer, face, addresses, **patient),
        )
        for call in calls:
            assert failure_of(call, within_s=15) is None
