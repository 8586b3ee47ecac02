"""Group state machine, offsets, coordinator."""
