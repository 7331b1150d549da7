"""Chaos: a streaming query from Kafka to Kafka runs under load while faults are injected.

kinds           the kinds of queries, with their options; the seed determines the kind
schedule        the faults of a seed, with their times
feed            the load: writes numbered records to the source topic
job             the settings of a query
program         the program of a Spark driver, which runs the query
queries         the queries of the kinds
spark_cluster   a Spark cluster with two hosts, in the driver's JVM
driver          restarts the Spark driver when it exits, and replaces it with a successor
driver_process  one process of the driver with its descendants
stalls          stalls a process of the sink at a failpoint
faults          injects the faults of a schedule into a cluster and a driver
expected        the rows that a query must write
oracle          compares the rows that a consumer reads with the expected rows
events          counts speculative attempts, stage retries and errors
run             runs one seed
report          the table of a run
"""
