"""Fixtures: a cluster of one broker in its own processes, and a warm fork server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration.clusters import Cluster
from integration.failpoints import matrix
from integration.failpoints.lanes import SETTINGS
from integration.failpoints.matrix import Recording
from integration.failpoints.session import Session, open_session
from tests.conftest import open_cluster


@pytest.fixture(scope="package")
def processes(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Open `reference-processes`, or the cluster of the option `--cluster`."""
    with open_cluster(request.config, backend=_backend(request), configs=SETTINGS) as opened:
        yield opened


def _backend(request: pytest.FixtureRequest) -> str | None:
    is_reference = request.config.getoption("--cluster") == "reference"
    return "reference-processes" if is_reference else None


@pytest.fixture(scope="package")
def old_transactions(request: pytest.FixtureRequest) -> Iterator[Session]:
    """Open a session on a cluster with `transaction.version` 1, where EndTxn bumps no epoch."""
    features = {"transaction.version": 1}
    with (
        open_cluster(
            request.config, backend=_backend(request), configs=SETTINGS, features=features
        ) as opened,
        open_session(opened, name="failpoints") as started,
    ):
        yield started


@pytest.fixture(scope="package")
def session(processes: Cluster) -> Iterator[Session]:
    with open_session(processes, name="failpoints") as opened:
        yield opened


@pytest.fixture(scope="package")
def recordings(session: Session) -> list[Recording]:
    """Record every scenario with no faults but its preconditions."""
    return matrix.record(session)
