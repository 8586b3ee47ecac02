"""Record batches (magic 2): their header and CRC, reading, building, compression, and Arrow columns."""
