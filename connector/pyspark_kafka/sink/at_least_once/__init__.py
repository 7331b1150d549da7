"""Implements the at-least-once sink, which is used if `transactionalId` is not set.

The producers of this sink are idempotent and use acks=all.

Rows of failed task attempts stay in the topic. If Spark reruns a batch, its rows are written again.
"""
