"""Kafka's value types under Kafka's names, without I/O.

`topics`: topics and partitions. `offsets`: ranges of offsets and queries for them. `transactions`:
producers and transactions. `log`: record batches. Every package may import these modules, which
import nothing else of this project.
"""
