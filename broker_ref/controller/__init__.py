"""Cluster metadata: brokers, topics, partitions, configs and producer ids.

`records` defines the metadata records, `journal` stores them durably, `metadata` is the state that
they result in, and `metadata_batches` encodes them for the brokers. `controller` decides which
records to write. It uses `broker_heartbeats`, `elections`, `alter_partition`, `reassignments`,
`topics`, `replica_placement`, `features` and `configs`.
"""
