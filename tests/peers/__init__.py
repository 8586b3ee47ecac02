"""The programs Klamm is held against: Apache Kafka itself, and clients that are not Python."""
