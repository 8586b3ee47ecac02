"""OAUTHBEARER without a network: what is sent, and which tokens are."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from klamm.security.oauth import OAuthLogin, OAuthToken, checked_token, expiry_seconds


def test_the_first_message() -> None:
    assert OAuthLogin(OAuthToken("a.b.c")).start() == b"n,,\x01auth=Bearer a.b.c\x01\x01"
    token = OAuthToken("t0k-en==", extensions={"tenant": "shop 1", "zone": "eu"})
    assert OAuthLogin(token).start() == b"n,,\x01auth=Bearer t0k-en==\x01tenant=shop 1\x01zone=eu\x01\x01"


def test_a_refusal_is_acknowledged_with_one_byte() -> None:
    assert OAuthLogin(OAuthToken("t")).answer(b"") is None
    assert OAuthLogin(OAuthToken("t")).answer(b'{"status":"invalid_token"}') == b"\x01"


def test_tokens_are_kept_out_of_logs() -> None:
    assert "secret" not in repr(OAuthToken("secret", 12.0, {"tenant": "secret"}))


def test_when_tokens_expire() -> None:
    assert expiry_seconds(OAuthToken("t")) is None
    assert expiry_seconds(OAuthToken("t", 12)) == 12
    assert expiry_seconds(OAuthToken("t", datetime(1970, 1, 1, 0, 1, tzinfo=UTC))) == 60


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (None, "NoneType, not a str"),
        (b"t", "bytes, not a str"),
        (("t", 12), "tuple, not a str"),
        ("", "characters that are not allowed in a token"),
        ("secret\x01auth=Bearer other", "characters that are not allowed in a token"),
        ("secret token", "characters that are not allowed in a token"),
        (OAuthToken("t", "soon"), "str as expires_at"),  # type: ignore[arg-type]
        (OAuthToken("t", datetime(2030, 1, 1)), "without a time zone"),
        (OAuthToken("t", extensions={"auth": "x"}), "not 'auth'"),
        (OAuthToken("t", extensions={"a-b": "x"}), "expected letters only"),
        (OAuthToken("t", extensions={"a": "x\x01b=y"}), "characters that cannot be sent"),
    ],
    ids=str,
)
def test_what_is_not_a_token(given: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as caught:
        checked_token(given)
    assert "secret" not in str(caught.value)
