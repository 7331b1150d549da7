"""Cluster metadata: brokers, topics, partitions, configs and producer ids.

`records` defines the metadata records, `journal` stores them durably, `metadata` contains the
cluster metadata that results from them, and `metadata_batches` encodes them for the brokers.
`controller` decides which records to write. It uses `broker_heartbeats`, `elections`,
`alter_partition`, `reassignments`, `topics`, `replica_placement`, `features` and `configs`.
"""
