"""Where rows go: tables of Parquet, of Iceberg, Delta or a database, and topics."""
