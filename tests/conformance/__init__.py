"""Tests of the behaviour that clients see on any Kafka broker.

Every test passes on Apache Kafka (`--cluster=kafka`) and on the reference broker (the default).
"""
