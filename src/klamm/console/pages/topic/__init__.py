"""The page of one topic: its head, and its tabs, one module each."""
