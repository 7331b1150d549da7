"""Unity Catalog service credentials of Databricks, for the vendors' providers.

Databricks documents two functions: one for Python workers on executors and one for the driver. Both
return the object that the vendor's SDK expects.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def service_credential(name: str) -> Any:
    """Return botocore's session, Azure's credential or Google's credentials."""
    from pyspark import TaskContext  # noqa: PLC0415, the operator command runs without Spark

    if TaskContext.get() is not None:
        return import_module("databricks.service_credentials").getServiceCredentialsProvider(name)
    runtime = import_module("databricks.sdk.runtime")
    return runtime.dbutils.credentials.getServiceCredentialsProvider(name)
