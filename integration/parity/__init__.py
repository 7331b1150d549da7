"""The differential test suite, which runs the same queries with Spark's connector and with ours.

`cases/` is the table of test cases, grouped by option. `run.py` runs a case with one connector, and
`outcomes.py` compares the outcomes of the two connectors. `page.py` generates docs/parity.md from
the table.
"""
