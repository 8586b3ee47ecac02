"""Proving who we are, and hiding what we say: SASL mechanisms and TLS, without IO."""
