"""Builds the command that error messages recommend if an operator must intervene.

Invariant: the command can be run after HOST:PORT is replaced with the address of a broker.
"""

from __future__ import annotations

import shlex


def operator_command(sink_id: str, flags: str) -> str:
    """Return the command with `flags`, for example `--forget`, and with hints for the operator."""
    return (
        f"`python -m pyspark_kafka transactions {shlex.quote(f'--id={sink_id}')} {flags} "
        "--bootstrap-servers HOST:PORT` (add --commit-topic if the sink sets 'commitTopic', and "
        "--command-config if the cluster is secured; without --yes the command changes nothing and "
        "only prints what it would do)"
    )
