"""Brokers that left a moment ago are still listed."""

from __future__ import annotations

from dataclasses import replace

from klamm.cluster.departed import LISTED_SECONDS, DepartedBrokers
from klamm.cluster.image import BrokerImage, Endpoint

ADDRESS = Endpoint("localhost", 9092)
ONE = BrokerImage(1, {"CLIENTS": ADDRESS})
TWO = BrokerImage(2, {"CLIENTS": ADDRESS})


def listed(departed: DepartedBrokers, now: float, listener_name: str = "CLIENTS") -> list[int]:
    return [broker.id for broker, _ in departed.at(listener_name, now)]


def test_a_broker_that_left_is_listed_for_a_while() -> None:
    departed = DepartedBrokers()
    departed.on_change({1: ONE, 2: TWO}, {1: ONE}, now=10.0)
    assert list(departed.at("CLIENTS", 10.0)) == [(TWO, ADDRESS)]
    assert listed(departed, 10.0 + LISTED_SECONDS - 0.01) == [2]
    assert listed(departed, 10.0 + LISTED_SECONDS) == []
    assert listed(departed, 10.0) == [], "what was forgotten stays forgotten"


def test_a_broker_without_the_listener_is_not_listed() -> None:
    departed = DepartedBrokers()
    departed.on_change({1: ONE, 2: TWO}, {1: ONE}, now=10.0)
    assert listed(departed, 10.0, "BROKERS") == []
    assert listed(departed, 10.0) == [2]


def test_a_broker_that_returns_is_not_listed_as_departed() -> None:
    departed = DepartedBrokers()
    departed.on_change({1: ONE, 2: TWO}, {1: ONE}, now=10.0)
    departed.on_change({1: ONE}, {1: ONE, 2: TWO}, now=11.0)
    assert listed(departed, 11.0) == []


def test_each_broker_has_its_own_time() -> None:
    departed = DepartedBrokers()
    departed.on_change({1: ONE, 2: TWO}, {1: ONE}, now=10.0)
    departed.on_change({1: ONE}, {}, now=12.0)
    assert listed(departed, 12.0) == [2, 1]
    assert listed(departed, 10.0 + LISTED_SECONDS) == [1]


def test_a_broker_that_shut_down_is_not_listed() -> None:
    departed = DepartedBrokers()
    leaving = replace(TWO, is_shutting_down=True)
    departed.on_change({1: ONE, 2: leaving}, {1: ONE}, now=10.0)
    assert listed(departed, 10.0) == []
