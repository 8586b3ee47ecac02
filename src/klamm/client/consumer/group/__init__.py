"""A consumer's part in its group: how partitions are shared out, how a member lives, sessions and claims."""
