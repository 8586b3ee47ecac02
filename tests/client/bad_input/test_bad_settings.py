"""Settings that would be ignored, or fail only once something is connected: refused when a client is made."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

import klamm
from klamm.config.rows import ConfigError
from tests.client.faces import Face

KINDS = ("producer", "consumer", "admin")


@contextlib.contextmanager
def refused(words: str) -> Iterator[None]:
    with pytest.raises(klamm.ConfigError, match=words) as caught:
        yield
    assert isinstance(caught.value, ConfigError)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sasl_mechanism": "PLAIN"}, "sasl.mechanism .*SASL_SSL or SASL_PLAINTEXT"),
        (
            {"sasl_username": "me", "sasl_password": "x", "security_protocol": "PLAINTEXT"},
            "sasl.password .*SASL_SSL",
        ),
        ({"ssl_ca_location": "ca.pem"}, "ssl.ca.location .*PLAINTEXT: set security.protocol to SSL"),
        (
            {
                "ssl_ca_location": "ca.pem",
                "security_protocol": "SASL_PLAINTEXT",
                **{"sasl_mechanism": "PLAIN", "sasl_username": "me", "sasl_password": "x"},
            },
            "ssl.ca.location .*SASL_PLAINTEXT: set security.protocol to SASL_SSL",
        ),
        ({"ssl_context": True}, "ssl_context=True .*ssl.SSLContext"),
        ({"ssl_context": "ca.pem", "security_protocol": "SSL"}, "ssl_context='ca.pem' .*ssl.SSLContext"),
    ],
)
def test_of_every_client(face: Face, bootstrap: str, kind: str, options: dict[str, Any], words: str) -> None:
    with refused(words):
        getattr(face, kind)(bootstrap, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"group_instance_id": "one"}, "group.instance.id .*without a group"),
        ({"max_poll_interval_ms": 1000}, "max.poll.interval.ms .*without a group"),
        ({"start": "begin"}, "^start=begin .*earliest, latest, none, a datetime.*nearest is earliest"),
        ({"auto_offset_reset": "begin"}, "^auto.offset.reset=begin .*nearest is earliest"),
    ],
)
def test_of_consumers(face: Face, bootstrap: str, options: dict[str, Any], words: str) -> None:
    with refused(words):
        face.consumer(bootstrap, **options)
