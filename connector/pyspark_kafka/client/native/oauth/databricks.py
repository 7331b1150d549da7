"""Databricks Unity Catalog service credentials, for the token providers of cloud vendors.

Databricks documents two functions: one for Python workers on executors and one for the driver. Both
functions return the object that the vendor's SDK expects.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def service_credential(name: str) -> Any:
    """Return a botocore session, an Azure credential or Google credentials."""
    from pyspark import TaskContext  # noqa: PLC0415, the operator command runs without Spark

    if TaskContext.get() is not None:
        return import_module("databricks.service_credentials").getServiceCredentialsProvider(name)
    runtime = import_module("databricks.sdk.runtime")
    return runtime.dbutils.credentials.getServiceCredentialsProvider(name)
