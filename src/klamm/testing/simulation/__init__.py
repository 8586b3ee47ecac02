"""A cluster in virtual time: the replication cores under faults that a seed chooses (docs/SIMULATION.md)."""
