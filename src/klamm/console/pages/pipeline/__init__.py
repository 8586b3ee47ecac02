"""The page of one pipeline: its head, and its tabs, one module each."""
