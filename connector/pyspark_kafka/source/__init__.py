"""The source: from options to offsets, to ranges of offsets, to Arrow batches.

`batch_reader` and `stream_reader` are the classes that Spark calls. `batch_planner` and
`stream_planner` plan on the driver, with `offset_reader` (offsets of the cluster), `range_check`
(data loss), `ranges` (tasks and rate limits) and `pruning` (filters). `input_partition` and
`range_reader` read on the executors.
"""
