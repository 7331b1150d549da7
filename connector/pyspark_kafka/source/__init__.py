"""Implements the Spark source, which reads records from Kafka.

`batch_reader` and `stream_reader` contain the classes that Spark calls. `batch_planner` and
`stream_planner` plan ranges on the driver. They use `offset_reader` (offsets in the cluster),
`range_check` (data loss), `ranges` (tasks and rate limits) and `pruning` (filters).
`task_reader` and `range_reader` read the ranges as Arrow batches on the executors. `prefetch` reads
small micro-batches on the driver.
"""
