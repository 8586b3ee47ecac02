"""What is in keys and values: JSON, text, hexadecimal, Avro and Protobuf."""
