"""Every message in every version comes back from its bytes as it was."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from klamm.protocol.codec import decode, encode, encode_chunks
from klamm.protocol.schema import Message
from tests.protocol.catalogue import MESSAGES, every_version
from tests.protocol.strategies import messages

# Some 370 versions of messages share the time, so each gets few examples; runs differ in what they try.
EXAMPLES_PER_VERSION = 6


@every_version
@settings(max_examples=EXAMPLES_PER_VERSION, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_round_trip(message: type[Message], version: int, data: st.DataObject) -> None:
    original = data.draw(messages(message, version))
    encoded = encode(original, version)
    decoded, end = decode(message, version, memoryview(encoded))
    assert decoded == original
    assert end == len(encoded)
    assert b"".join(encode_chunks(decoded, version)) == encoded


@every_version
def test_defaults_round_trip(message: type[Message], version: int) -> None:
    encoded = encode(message(), version)
    assert decode(message, version, b"before" + encoded, 6) == (message(), len(encoded) + 6)


def test_all_messages_are_found() -> None:
    assert len(MESSAGES) == 2 * 59 + 4 + 2
