"""The at-least-once sink, used if `transactionalId` is not set.

Its producers are idempotent and use acks=all.

Rows of failed task attempts stay in the topic. If Spark runs a batch again, its rows are written
again.
"""
