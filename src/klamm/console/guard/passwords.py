"""The password of the console, kept as a hash by scrypt: `scrypt:salt:hash`, both in hexadecimal digits."""

from __future__ import annotations

import hashlib
import hmac
import secrets

MARK = "scrypt:"
_N, _R, _P = 2**14, 8, 1
"""16 MB and some hundredths of a second for each attempt."""
_SALT_BYTES = 16
LONGEST_PASSWORD = 1_024


def hashed(password: str) -> str:
    salt = secrets.token_bytes(_SALT_BYTES)
    return f"{MARK}{salt.hex()}:{_scrypt(password, salt).hex()}"


def is_hash(text: str) -> bool:
    parts = text.split(":")
    return len(parts) == 3 and parts[0] == MARK.rstrip(":") and all(_is_hex(part) for part in parts[1:])


def is_right(password: str, kept: str) -> bool:
    """True if `kept` is the hash of the password. Takes the same time for every wrong one."""
    if len(password) > LONGEST_PASSWORD:
        return False
    _, salt, expected = kept.split(":")
    return hmac.compare_digest(_scrypt(password, bytes.fromhex(salt)), bytes.fromhex(expected))


def _scrypt(password: str, salt: bytes) -> bytes:
    return hashlib.scrypt(password.encode(), salt=salt, n=_N, r=_R, p=_P)


def _is_hex(text: str) -> bool:
    return bool(text) and len(text) % 2 == 0 and all(one in "0123456789abcdef" for one in text)
