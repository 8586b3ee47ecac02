"""A cluster in virtual time: controller, replication, groups under faults by a seed (docs/SIMULATION.md)."""
