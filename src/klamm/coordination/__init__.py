"""The coordination store: its interface, sessions and watches, the SQLite engine and the ZooKeeper engine."""
