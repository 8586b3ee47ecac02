"""One module per API key."""
