"""Cluster metadata: brokers, topics, partitions, configs and producer ids.

`records` defines the metadata records, and `journal` stores the records durably. `metadata`
contains the cluster metadata that results from the records. `metadata_batches` encodes the records
for the brokers. `controller` decides which records to write. To do so, it uses `broker_heartbeats`,
`elections`, `alter_partition`, `reassignments`, `topics`, `replica_placement`, `features` and
`configs`.
"""
