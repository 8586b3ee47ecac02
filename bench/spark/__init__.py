"""The Spark pipelines beside what a user would take instead: Spark's own connector, confluent-kafka."""
