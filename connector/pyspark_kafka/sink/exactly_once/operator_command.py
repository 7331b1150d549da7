"""The command that an error recommends if only an operator can continue.

Purpose: `operator_command`. Invariant: the command runs once the address of a broker is filled in.
Must not know: what the command does.
"""

from __future__ import annotations

import shlex


def operator_command(sink_id: str, flags: str) -> str:
    """Return the command with `flags` such as `--forget`, and how to complete it."""
    return (
        f"`python -m pyspark_kafka transactions {shlex.quote(f'--id={sink_id}')} {flags} "
        "--bootstrap-servers HOST:PORT` (add --commit-topic if the sink sets 'commitTopic'; "
        "without --yes the command only prints what it would do)"
    )
