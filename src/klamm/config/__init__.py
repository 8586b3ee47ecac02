"""One row per key; files, environment, flags."""
