"""Chaos: a streaming query from Kafka to Kafka runs under load while faults are injected.

schedule  the faults of a seed, with their times
job       the query, in its own Spark driver
feed      the load: writes numbered records to the source topic
driver    restarts the Spark driver when it ends, and finds its Python workers
faults    injects the faults of a schedule into a cluster and a driver
oracle    compares the rows that a consumer reads with the source
run       runs one seed
report    the table of a run
"""
