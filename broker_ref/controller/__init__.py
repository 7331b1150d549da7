"""Cluster metadata: brokers, topics, partitions, configs and producer ids.

`records` are the facts, `journal` keeps them durably, `metadata` is what they add up to, and
`controller` decides which to write.
"""
