"""Logins (SASL) and encryption (TLS) of the client, without IO."""
