"""Projects of pipelines: their outline, their status, their tables, their dead-letter records."""
