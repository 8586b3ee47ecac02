"""Iceberg tables that pipelines write: through a catalog, by pyiceberg, without a jar."""
