"""Chaos: a streaming query from Kafka to Kafka, under load, with injected faults.

schedule  the faults of a seed, with their times
job       the query, in its own Spark driver
feed      the load: numbered records into the source
driver    restarts that driver when it ends, and finds its Python workers
faults    injects the faults of a schedule into a cluster and a driver
oracle    compares what a reader sees with the source
run       runs one seed
report    the table of a run
"""
