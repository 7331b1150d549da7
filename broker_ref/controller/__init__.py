"""Cluster metadata: brokers, topics, partitions, configs and producer ids.

`records` are the facts, `journal` keeps them durably, `metadata` is what they add up to, `stream`
is how brokers follow them, and `controller` decides which to write, by what `registrations`,
`elections`, `isr_changes`, `reassignments`, `topics`, `placement` and `configs` say.
"""
