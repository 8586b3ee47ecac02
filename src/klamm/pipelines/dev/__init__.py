"""What `klamm pipeline dev` does after a save, without the terminal: see `saves.py`."""
