"""The programs that tests compare Klamm with: Apache Kafka itself, and clients that are not Python."""
