"""A real broker inside a test: `Broker` as a context manager, and a pytest plugin with fixtures."""

from klamm.testing.broker import Broker as Broker
