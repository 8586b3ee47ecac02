"""The JSON API: what pages show and do, by the same functions."""
