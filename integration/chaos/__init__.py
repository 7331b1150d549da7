"""Chaos: a streaming query from Kafka to Kafka runs under load while faults are injected.

kinds           defines the kinds of queries and their options; the seed determines the kind
schedule        determines which faults a seed injects, and when
feed            writes numbered records to the source topic, as the load
job             defines the settings of a query
program         runs the query in a Spark driver
queries         defines the query of each kind
spark_cluster   starts a Spark cluster with two hosts in the driver's JVM
driver          restarts the Spark driver when it exits, and replaces it with a successor
driver_process  starts one driver process, and stops, resumes and kills it with its descendants
stalls          stalls a process of the sink at a failpoint
faults          injects the faults of a schedule into a cluster and a driver
expected        calculates the rows that a query must write
oracle          compares the rows that a consumer reads with the expected rows
events          counts speculative attempts, stage retries and errors
run             runs one seed
report          formats the results of a run as a table
"""
