"""The examples in the guide's section "Security" connect to a secured cluster.

Only what depends on the reader's cluster is replaced: addresses, files and the token endpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from integration.clusters import Cluster, open_cluster
from integration.clusters.security import Certificates, SecuredListener, Security
from integration.docs_site import ROOT
from pyspark_kafka.client.factory import open_client
from pyspark_kafka.options.parse import parse_source_options
from tests.pyspark_kafka.client.test_native_security import answering, endpoint
from tests.pyspark_kafka.client.test_security import unsecured_token

_ENCRYPTED, _ENCRYPTED_LOGIN, _MUTUAL, _LOGIN = "SSL", "SASL_SSL", "MTLS", "SASL_PLAINTEXT"

LISTENERS = {
    "TLS. ": _ENCRYPTED,
    "TLS with a client certificate.": _MUTUAL,
    "PLAIN:": _ENCRYPTED_LOGIN,
    "SCRAM.": _ENCRYPTED_LOGIN,
    "OAUTHBEARER with OIDC": _ENCRYPTED_LOGIN,
    "OAUTHBEARER with unsecured": _LOGIN,
    "Confluent Cloud": _ENCRYPTED_LOGIN,
    "For Aiven": _MUTUAL,
}
"""The listener for each example, by the beginning of the paragraph above it."""

SECURITY = Security(
    users={"u": "p"},
    listeners=(
        SecuredListener(name=_ENCRYPTED, protocol="SSL"),
        SecuredListener(name=_MUTUAL, protocol="SSL", requires_certificate=True),
        SecuredListener(name=_ENCRYPTED_LOGIN, protocol="SASL_SSL"),
        SecuredListener(name=_LOGIN, protocol="SASL_PLAINTEXT"),
    ),
)


class Recorder(dict[str, str]):
    """Records options like Spark's readers and writers."""

    def option(self, name: str, value: str) -> Recorder:
        self[name] = value
        return self


def example(beginning: str) -> dict[str, str]:
    """Return the options of the first example after a paragraph that begins like this."""
    guide = (ROOT / "docs" / "guide.md").read_text()
    (code,) = re.findall(
        rf"^{re.escape(beginning)}(?:(?!```).)*```python\n(.*?)```", guide, re.MULTILINE | re.DOTALL
    )
    recorder: Recorder = eval(f"(recorder\n{code})", {"recorder": Recorder()})
    return recorder


@pytest.fixture(scope="module")
def secured() -> Iterator[Cluster]:
    with open_cluster("reference", security=SECURITY) as cluster:
        yield cluster


def files(certificates: Certificates) -> dict[str, str]:
    """Return the files of the guide and the files that replace them."""
    client = certificates.issue("client", "client@example.org")
    key, separator, chain = client.read_text().partition("-----BEGIN CERTIFICATE-----")
    parts = {"service.key": key, "service.cert": separator + chain}
    for name, content in parts.items():
        client.with_name(name).write_text(content)
    return {
        "/etc/ssl/kafka-ca.pem": str(certificates.ca),
        "/etc/ssl/client.pem": str(client),
        "/etc/kafka/ca.pem": str(certificates.ca),
        **{f"/etc/kafka/{name}": str(client.with_name(name)) for name in parts},
    }


@pytest.mark.parametrize("beginning", LISTENERS)
def test_example_connects(
    beginning: str, secured: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    listener = LISTENERS[beginning]
    monkeypatch.setenv("CONFLUENT_KEY", "u")
    monkeypatch.setenv("CONFLUENT_SECRET", "p")
    # The examples trust the authorities of the operating system.
    monkeypatch.setenv("SSL_CERT_FILE", str(secured.secured.certificates.ca))
    replaced = files(secured.secured.certificates)
    options = {name: replaced.get(value, value) for name, value in example(beginning).items()}
    options |= {
        "kafka.bootstrap.servers": secured.secured.servers(listener),
        "subscribe": "any",
        "engine": "native",
    }
    with ExitStack() as opened:
        url = "kafka.sasl.oauthbearer.token.endpoint.url"
        if url in options:
            token = unsecured_token({"user": "u"}).value
            options[url] = opened.enter_context(
                endpoint(answering(200, {"access_token": token}))
            ).url
        client = opened.enter_context(
            open_client(parse_source_options(options, streaming=False).client)
        )
        assert list(client.list_topics()) == []
