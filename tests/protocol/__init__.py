"""Tests of klamm.protocol."""
