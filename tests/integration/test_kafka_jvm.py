"""Kafka's JVMs use class archives in tests and default options in benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest

from integration.benchmarks.processes import command_line, descendants
from integration.clusters import open_cluster
from integration.clusters.kafka_jvm import (
    class_archiving_jvm_options,
    default_jvm_options,
    fast_start_jvm_options,
)

ROLES = ("controller", "broker")


@pytest.mark.parametrize("role", ROLES)
def test_an_archive_is_read_from_where_it_was_written(tmp_path: Path, role: str) -> None:
    compiles_little, collects_simply, leaves = class_archiving_jvm_options(tmp_path)(role)
    assert (compiles_little, collects_simply) == fast_start_jvm_options(tmp_path)(role)
    archive = Path(leaves.removeprefix("-XX:ArchiveClassesAtExit="))
    archive.touch()
    assert fast_start_jvm_options(tmp_path)(role)[2:] == (f"-XX:SharedArchiveFile={archive}",)


def test_each_role_has_its_own_archive(tmp_path: Path) -> None:
    assert len({class_archiving_jvm_options(tmp_path)(role) for role in ROLES}) == len(ROLES)


@pytest.mark.parametrize("role", ROLES)
def test_measured_nodes_use_kafkas_own_options(role: str) -> None:
    assert default_jvm_options(role) == ()


@pytest.mark.slow
@pytest.mark.kafka_only
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("is_measured", "archives"), [(False, set(ROLES)), (True, set())])
def test_nodes_start_from_archives(is_measured: bool, archives: set[str]) -> None:
    before = descendants()
    with open_cluster("kafka", is_measured=is_measured):
        nodes = [pid for pid in descendants() - before if "kafka.Kafka" in command_line(pid)]
        assert len(nodes) == len(ROLES)
        mapped = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in nodes)
    assert {role for role in ROLES if f"/{role}.jsa" in mapped} == archives
