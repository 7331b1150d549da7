"""How fast the connector is beside Spark's own, and the clusters beside each other."""
