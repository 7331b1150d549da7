"""The differential suite, which runs the same queries on Spark's connector and on ours.

`cases/` is the table of cases, grouped by option. `run.py` runs a case on one connector, and
`outcomes.py` compares what the two connectors did. `page.py` generates docs/parity.md from the
table.
"""
