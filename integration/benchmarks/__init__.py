"""Benchmarks: the connector against Spark's own connector, and broker_ref against Apache Kafka."""
