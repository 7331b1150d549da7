"""Benchmarks: the connector compared with Spark's own, and broker_ref with Apache Kafka."""
