"""Bugs that Kafka had, which tests reintroduce into broker_ref and the simulation detects."""
