"""A standalone Spark cluster with two workers, in the JVM of the driver.

Each worker has its own loopback address, which Spark treats as a host. With `local-cluster`, all
executors would be on the same host. Spark would then never run a speculative attempt, because it
does not place such an attempt on the host of the original attempt. The executors are child
processes of the driver's JVM. Invariant: the cluster listens only on loopback addresses, and it
stops when the driver exits.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark import SparkConf, SparkContext

_MASTER_HOST: Final = "127.0.0.1"
_WORKER_HOSTS: Final = ("127.0.0.2", "127.0.0.3")
_CORES: Final = 1
_MEMORY_MB: Final = 1024
_SETTINGS: Final = {
    "spark.master.rest.enabled": "false",
    "spark.shuffle.service.enabled": "false",
    # Faults kill executors more often than the master tolerates by default.
    "spark.deploy.maxExecutorRetries": "-1",
    # The master must not remove the workers while the driver is stopped (SIGSTOP).
    "spark.worker.timeout": "600",
}


def start(directory: Path, *, settings: Mapping[str, str]) -> str:
    """Start the driver's JVM, the master and the workers, and return the URL of the master.

    `directory` will contain the logs of the executors. `settings` is the Spark configuration of the
    JVM. It must include the JARs, because the JVM needs them when it starts.
    """
    os.environ["SPARK_LOCAL_IP"] = _MASTER_HOST  # The web UIs bind to this address.
    SparkContext._ensure_initialized(conf=SparkConf().setAll([*settings.items()]))
    gateway: Any = SparkContext._gateway
    deploy = gateway.jvm.org.apache.spark.deploy
    conf = gateway.jvm.org.apache.spark.SparkConf(False)
    for name, value in _SETTINGS.items():
        conf.set(name, value)
    master = deploy.master.Master.startRpcEnvAndEndpoint(_MASTER_HOST, 0, 0, conf)
    url = f"spark://{master._1().address().hostPort()}"
    urls = gateway.new_array(gateway.jvm.java.lang.String, 1)
    urls[0] = url
    none = gateway.jvm.scala.Option.empty()
    for number, host in enumerate(_WORKER_HOSTS):
        deploy.worker.Worker.startRpcEnvAndEndpoint(
            host,
            0,
            0,
            _CORES,
            _MEMORY_MB,
            urls,
            str(directory),
            gateway.jvm.scala.Option.apply(number),
            conf,
            none,
        )
    return url


def executor_settings() -> Mapping[str, str]:
    """Return settings that make executors start fast.

    With these settings, executors stay registered while they are stopped (SIGSTOP), and use the
    same JVM options as the driver.
    """
    return {
        "spark.executor.extraJavaOptions": os.environ.get("SPARK_SUBMIT_OPTS", ""),
        "spark.network.timeout": "600s",
    }
