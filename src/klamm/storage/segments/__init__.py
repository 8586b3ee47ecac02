"""One segment of a log: its file of batches, its two indexes, and how its files are read and replaced."""
