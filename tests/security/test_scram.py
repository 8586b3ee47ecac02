from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from klamm.security.sasl import SaslRefused, sasl_credentials
from klamm.security.scram import MAX_ITERATIONS, ScramCredentials, ScramError, ScramExchange

# RFC 7677, section 3.
NONCE = "rOprNGfwEbeRWgbNEkqO"
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def exchange(password: str = "pencil", mechanism: str = "SCRAM-SHA-256") -> ScramExchange:
    return ScramExchange(ScramCredentials(mechanism, "user", password), NONCE)


def test_the_exchange_of_the_rfc() -> None:
    one = exchange()
    assert one.first() == CLIENT_FIRST
    assert one.final(SERVER_FIRST) == CLIENT_FINAL
    one.verify(SERVER_FINAL)


def test_a_login_goes_through_the_same_steps() -> None:
    login = sasl_credentials("SCRAM-SHA-256", "user", "pencil").login(NONCE)
    assert login.start() == CLIENT_FIRST
    assert login.is_slow
    assert login.answer(SERVER_FIRST) == CLIENT_FINAL
    assert not login.is_slow
    assert login.answer(SERVER_FINAL) is None


def test_sha_512_against_a_server_written_from_the_rfc() -> None:
    one = exchange(mechanism="SCRAM-SHA-512")
    salt, iterations = b"0123456789abcdef", 5000
    server_first = f"r={NONCE}server,s={base64.b64encode(salt).decode()},i={iterations}"
    final = one.final(server_first.encode()).decode()
    without_proof, _, proof = final.rpartition(",p=")
    message = f"n=user,r={NONCE},{server_first},{without_proof}".encode()
    salted = hashlib.pbkdf2_hmac("sha512", b"pencil", salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", "sha512")
    stored_key = hashlib.sha512(client_key).digest()
    signature = hmac.digest(stored_key, message, "sha512")
    recovered = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
    assert hashlib.sha512(recovered).digest() == stored_key
    server_key = hmac.digest(salted, b"Server Key", "sha512")
    one.verify(b"v=" + base64.b64encode(hmac.digest(server_key, message, "sha512")))


def test_a_server_that_does_not_know_the_password_is_refused() -> None:
    one = exchange()
    one.final(SERVER_FIRST)
    forged = base64.b64encode(bytes(32))
    with pytest.raises(ScramError, match="did not prove that it knows the password"):
        one.verify(b"v=" + forged)
    with pytest.raises(ScramError, match="did not prove that it knows the password"):
        one.verify(b"v=")


def test_a_refusal_in_scram_s_own_words() -> None:
    one = exchange()
    one.final(SERVER_FIRST)
    with pytest.raises(ScramError, match="invalid-proof"):
        one.verify(b"e=invalid-proof")


@pytest.mark.parametrize(
    ("server_first", "problem"),
    [
        (b"r=someone-elses,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce"),
        (b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4095", "4095 iterations"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=%d" % (MAX_ITERATIONS + 1), "iterations"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=99999999999999", "iterations"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=-4096", "iterations"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==", "no iterations"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=%,i=4096", "base64"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=,i=4096", "no salt"),
        (b"m=more,r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "extension"),
        (b"e=other-error", "other-error"),
        (b"r=a,r=b", "not a valid SCRAM message"),
        (b"hello", "not a valid SCRAM message"),
        (b"", "not a valid SCRAM message"),
        (b"r=\xff", "UTF-8"),
    ],
)
def test_what_a_server_may_not_say(server_first: bytes, problem: str) -> None:
    with pytest.raises(ScramError, match=problem):
        exchange().final(server_first)
    login = sasl_credentials("SCRAM-SHA-256", "user", "pencil").login(NONCE)
    with pytest.raises(SaslRefused, match=problem):
        login.answer(server_first)


def test_keys_are_derived_once_per_salt() -> None:
    credentials = ScramCredentials("SCRAM-SHA-256", "user", "pencil")
    first = credentials.keys(b"salt", 4096)
    assert credentials.keys(b"salt", 4096) is first
    for number in range(20):
        credentials.keys(b"%d" % number, 1)
    assert credentials.keys(b"salt", 4096) == first, "what was dropped is derived again"


def test_commas_and_equals_signs_in_names() -> None:
    assert ScramCredentials("SCRAM-SHA-256", "a,b=c", "x").username == "a=2Cb=3Dc"


def test_plain_sends_what_it_is_given() -> None:
    login = sasl_credentials("PLAIN", "tim", "tanstaaftanstaaf").login("")
    assert login.start() == b"\0tim\0tanstaaftanstaaf"
    assert not login.is_slow
    assert login.answer(b"") is None
    with pytest.raises(ValueError, match="NUL"):
        sasl_credentials("PLAIN", "tim\0", "x")


def test_unknown_mechanisms() -> None:
    with pytest.raises(ValueError, match="GSSAPI: expected one of PLAIN, SCRAM-SHA-256"):
        sasl_credentials("GSSAPI", "a", "b")
