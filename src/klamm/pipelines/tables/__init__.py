"""Tables in Delta Lake's format: their log, the files that tasks write, upkeep."""
