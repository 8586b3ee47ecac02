"""The declarations: one module per API key, and the records of internal topics."""
