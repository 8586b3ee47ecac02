from __future__ import annotations

import pytest

from klamm.security.saslprep import saslprep


@pytest.mark.parametrize(
    ("text", "prepared"),
    [
        # RFC 4013, section 3.
        ("I\u00adX", "IX"),
        ("user", "user"),
        ("USER", "USER"),
        ("\u00aa", "a"),
        ("\u2168", "IX"),
        # And of our own.
        ("a\u00a0b", "a b"),
        ("pa\u0308ss", "päss"),
        ("päss, =", "päss, ="),
        ("\u0627\u0628", "\u0627\u0628"),
        ("", ""),
    ],
)
def test_prepared(text: str, prepared: str) -> None:
    assert saslprep(text) == prepared


@pytest.mark.parametrize("text", ["\u0007", "\u0627\u0031", "\u0627a\u0628", "a\ue000", "\ufffd", "\u200e"])
def test_prohibited(text: str) -> None:
    with pytest.raises(ValueError):
        saslprep(text)
