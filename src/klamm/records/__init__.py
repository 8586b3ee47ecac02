"""Record batches v2: header, CRC, iterate, build, compression."""
