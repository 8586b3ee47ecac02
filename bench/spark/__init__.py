"""Compares pipelines on Spark with what a user could use instead: Spark's own connector, confluent-kafka."""
