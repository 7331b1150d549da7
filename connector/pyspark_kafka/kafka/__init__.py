"""Kafka's value types, with the names that Kafka uses. The modules perform no I/O.

`topics` contains topics and partitions. `offsets` contains offset ranges and offset queries.
`transactions` contains producers and transactions. `log` contains record batches. Every package may
import these modules, but they import no other package of this project.
"""
