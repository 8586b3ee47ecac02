"""One module per Python client, each run in a process of its own; `driving` measures them all alike."""
