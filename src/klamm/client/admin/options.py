"""The keyword arguments of an Admin: those of every client."""

from __future__ import annotations

from klamm.client.options import ClientOptions


class AdminOptions(ClientOptions, total=False):
    """Settings of an admin; docs/CLIENT_CONFIGURATION.md says what they mean."""
