"""Reports the lag and the row and byte counts of streaming queries.

`progress` reads Spark's progress reports, and `lag` calculates the lag. Both run in the user's
program, not in the processes that Spark starts for reads and writes.
"""
