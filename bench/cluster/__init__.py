"""Three brokers of Klamm beside three of Apache Kafka, on one machine."""
