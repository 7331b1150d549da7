"""The sink without `transactionalId`: idempotent producers, every row acknowledged by acks=all.

Rows of failed attempts stay in the topic, and a batch that Spark runs again is written again.
"""
