"""Reading: from options to offsets, to ranges, to Arrow batches.

`offsets`, `selection`, `ranges` and `planner` know no Spark; `batch_reader` and `stream_reader`
are what Spark calls. Only `read_range` runs on executors.
"""
