"""The schemas of sources: written in the decorator, read from files, or inferred from records."""

from __future__ import annotations

from klamm.pipelines.schemas.resolving import SchemaUpdate, ensure_schema, schema_file, schema_of, update

__all__ = ["SchemaUpdate", "ensure_schema", "schema_file", "schema_of", "update"]
