"""Chaos: a streaming query from Kafka to Kafka under load while everything around it fails.

schedule  which faults, when: a seed says it
job       the query, in a driver of its own
feed      the load: numbered records into the source
driver    that driver, started again whenever it ends, and its Python workers
faults    a schedule carried out on a cluster and a driver
verdict   what a reader sees in the end
run       all of it, for one seed
report    the table of a run
"""
