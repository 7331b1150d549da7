"""No secret of an option is in a log, plan, error, progress, event log or checkpoint.

docs/guide.md lists the places where Spark itself shows options, such as the plans of Spark Connect.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_ref import Cluster
from integration import spark_jvm

pytestmark = [pytest.mark.spark, pytest.mark.full, pytest.mark.timeout(240)]

JOB = Path(__file__).parent / "jobs" / "planted_secrets.py"
WAYS = ("plain", "env", "file")
SECRETS = {f"{w}_{which}": f"planted-{w}-{which}" for w in WAYS for which in ("right", "wrong")}
PLANTED = re.compile(r".{0,200}planted-(?:plain|env|file)-(?:right|wrong).{0,50}")


@pytest.fixture(scope="module")
def secured() -> Iterator[Cluster]:
    users = " ".join(f'user_{way}="planted-{way}-right"' for way in WAYS)
    configs = {
        "listeners": "PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": "org.apache.kafka.common.security"
        f".plain.PlainLoginModule required {users};",
    }
    with Cluster(configs=configs) as cluster:
        cluster.create_topic("planted")
        cluster.create_topic("copied")
        yield cluster


def test_no_secret_is_shown(secured: Cluster, tmp_path: Path) -> None:
    properties = "".join(f"{name}={secret}\n" for name, secret in SECRETS.items())
    (tmp_path / "secrets.properties").write_text(properties)
    for name, password in (("client", "planted-file-right"), ("wrong", "planted-file-wrong")):
        (tmp_path / f"{name}.properties").write_text(
            "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
            f"sasl.username=file\nsasl.password={password}\n"
        )
    ran = subprocess.run(
        [sys.executable, str(JOB), secured.address(1, 1), str(tmp_path)],
        env={**os.environ, **spark_jvm.environment(), **SECRETS},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    shown = ran.stdout + ran.stderr
    assert "all queries ran" in ran.stdout, shown[-5_000:]
    assert set(re.findall(r"exit code (\d)", shown)) == {"0", "1"}
    assert "could not authenticate" in shown
    assert "${env:env_right}" in shown, "the error of an invalid option shows the reference"
    assert not PLANTED.findall(shown)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"events", "checkpoint-0"} <= {path.relative_to(tmp_path).parts[0] for path in written}
    for path in written:
        if path.suffix != ".properties":
            assert not PLANTED.findall(path.read_bytes().decode(errors="replace")), path
