"""The command that an error names where only an operator can go on.

Purpose: `command`. Invariant: it can be run once its brokers are filled in. What it must not know:
what the command does.
"""

from __future__ import annotations

import shlex


def operator_command(sink_id: str, flags: str) -> str:
    """With `flags` such as `--forget`. Without `--yes` it only says what it would do."""
    return (
        f"`python -m pyspark_kafka transactions {shlex.quote(f'--id={sink_id}')} {flags} "
        "--bootstrap-servers HOST:PORT` (and --commit-topic, where the sink has that option; it "
        "says what it would do, and does it with --yes)"
    )
