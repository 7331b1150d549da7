"""Fixtures of the failpoint tests: a cluster of one broker in processes, and a fork server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration.clusters import Cluster, restricted_user
from integration.failpoints import matrix
from integration.failpoints.lanes import SETTINGS
from integration.failpoints.matrix import Recording
from integration.failpoints.session import Session, open_session
from tests.conftest import open_cluster


@pytest.fixture(scope="package")
def processes(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Open a cluster of `reference-processes`, or of the backend in the option `--cluster`."""
    with open_cluster(request.config, backend=_backend(request), configs=SETTINGS) as opened:
        yield opened


def _backend(request: pytest.FixtureRequest) -> str | None:
    is_reference = request.config.getoption("--cluster") == "reference"
    return "reference-processes" if is_reference else None


@pytest.fixture(scope="package")
def old_transactions(request: pytest.FixtureRequest) -> Iterator[Session]:
    """Open a session on a cluster with `transaction.version` 1.

    With this version EndTxn does not bump the producer epoch.
    """
    features = {"transaction.version": 1}
    with (
        open_cluster(
            request.config, backend=_backend(request), configs=SETTINGS, features=features
        ) as opened,
        open_session(opened, name="failpoints") as started,
    ):
        yield started


@pytest.fixture(scope="package")
def secured_session(request: pytest.FixtureRequest) -> Iterator[Session]:
    """Open a session whose sink connects over SASL_SSL as a user with the ACLs of the guide."""
    with (
        open_cluster(
            request.config,
            backend=_backend(request),
            configs={**SETTINGS, **restricted_user.CONFIGS},
            security=restricted_user.SECURITY,
        ) as opened,
        open_session(opened, name="failpoints", is_secured=True) as started,
    ):
        yield started


@pytest.fixture(scope="package")
def session(processes: Cluster) -> Iterator[Session]:
    with open_session(processes, name="failpoints") as opened:
        yield opened


@pytest.fixture(scope="package")
def recordings(session: Session) -> list[Recording]:
    """Record every scenario without faults except its preconditions."""
    return matrix.record(session)
