"""What a log knows of idempotent producers: their last batches, and the snapshots of them on disk."""
