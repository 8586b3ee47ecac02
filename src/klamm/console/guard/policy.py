"""What browsers may load and do on a page of the console: headers of every answer, and a nonce per page.

Vue compiles its templates in the browser, which needs 'unsafe-eval'; a script in a page runs only with the
page's nonce, so an attribute such as onerror that got into a page by mistake does nothing. Nothing may be
loaded from, or sent to, another host.
"""

from __future__ import annotations

import re
import secrets

_SCRIPT = re.compile(rb"<script\b")


def new_nonce() -> str:
    return secrets.token_urlsafe(16)


def with_nonce(page: bytes, nonce: str) -> bytes:
    """The page with the nonce in its scripts. Content is not affected: in it, < is escaped."""
    return _SCRIPT.sub(f'<script nonce="{nonce}"'.encode(), page)


def headers(nonce: str, host: str) -> dict[str, str]:
    """The headers of an answer to a request for `host`."""
    rules = (
        "default-src 'none'",
        f"script-src 'self' 'unsafe-eval' 'nonce-{nonce}'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "font-src 'self'",
        f"connect-src 'self' ws://{host} wss://{host}",
        "worker-src 'self' blob:",
        "manifest-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
    return {
        "content-security-policy": "; ".join(rules),
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "referrer-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
    }
