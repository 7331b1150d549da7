"""`docs/apis.md` contains the versions that the brokers return."""

from __future__ import annotations

import pytest

from integration.api_table import DOCUMENT, advertised, parse, render
from integration.clusters import Cluster, open_cluster
from integration.clusters.maven import KAFKA_VERSION


def test_the_document_is_up_to_date() -> None:
    document = DOCUMENT.read_text()
    kafka, reference = parse(document)
    version = f"Apache Kafka {KAFKA_VERSION}"
    assert render(kafka=kafka, reference=reference, kafka_version=version) == document


def test_the_documented_versions_of_the_reference_match_its_response() -> None:
    with open_cluster("reference") as cluster:
        assert parse(DOCUMENT.read_text())[1] == advertised(cluster.address(1))


@pytest.mark.kafka_only
def test_the_documented_versions_of_kafka_match_its_response(cluster: Cluster) -> None:
    assert parse(DOCUMENT.read_text())[0] == advertised(cluster.address(1))


def test_the_reference_supports_only_versions_of_kafka() -> None:
    kafka, reference = parse(DOCUMENT.read_text())
    for key, (lowest, highest) in reference.items():
        assert kafka[key][0] <= lowest <= highest <= kafka[key][1], key
