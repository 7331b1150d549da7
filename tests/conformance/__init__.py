"""The behaviour of any Kafka broker, as seen by clients.

Every test here passes on Apache Kafka (`--cluster=kafka`) and on the reference broker (the
default).
"""
