"""The differential suite: the same queries on Spark's own connector and on `pyspark_kafka`.

`cases/` is the table of cases, grouped by option. `run.py` runs a case on one connector, and
`outcomes.py` compares what both connectors did. `page.py` generates docs/parity.md from the table.
"""
