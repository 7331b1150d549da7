"""Reports the lag and the row and byte counts of streaming queries.

`progress` reads Spark's progress reports, `lag` calculates the lag, `sizes` counts bytes,
`listener` logs each progress report as JSON, and `prometheus` exports the same values. All of these
modules run in the user's program, not in the processes that Spark starts for reads and writes.
"""
