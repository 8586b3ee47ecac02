"""Sessions of those who have logged in, and a limit of attempts. The caller passes the time."""

from __future__ import annotations

import hashlib
import secrets

LONGEST_S = 12 * 3600.0
"""A session ends after so long without a request."""
MOST_SESSIONS = 1_000
"""With one more, the one that was used the longest ago ends."""

ATTEMPTS_PER_MINUTE = 10
"""Of one address. A password of eight random characters takes longer than a lifetime then."""
MOST_ADDRESSES = 10_000
MINUTE_S = 60.0


class Sessions:
    """The sessions by the hash of their token: what is in memory opens nothing."""

    def __init__(self) -> None:
        self._used_s: dict[str, float] = {}

    def open(self, now_s: float) -> str:
        """A new session; its token is for the cookie."""
        token = secrets.token_urlsafe(32)
        while len(self._used_s) >= MOST_SESSIONS:
            del self._used_s[next(iter(self._used_s))]
        self._used_s[_key(token)] = now_s
        return token

    def holds(self, token: str, now_s: float) -> bool:
        """True for the token of a session that has not ended; it is used now."""
        key = _key(token)
        used_s = self._used_s.pop(key, None)
        if used_s is None or now_s - used_s > LONGEST_S:
            return False
        self._used_s[key] = now_s  # the newest is last
        return True

    def close(self, token: str) -> None:
        self._used_s.pop(_key(token), None)


class Attempts:
    """How often each address has tried a wrong password in the last minute."""

    def __init__(self) -> None:
        self._failed_s: dict[str, list[float]] = {}

    def may_try(self, address: str, now_s: float) -> bool:
        recent = [one for one in self._failed_s.get(address, ()) if now_s - one < MINUTE_S]
        return len(recent) < ATTEMPTS_PER_MINUTE

    def failed(self, address: str, now_s: float) -> None:
        recent = [one for one in self._failed_s.pop(address, ()) if now_s - one < MINUTE_S]
        while len(self._failed_s) >= MOST_ADDRESSES:
            del self._failed_s[next(iter(self._failed_s))]
        self._failed_s[address] = [*recent, now_s][-ATTEMPTS_PER_MINUTE:]


def _key(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
