"""The exactly-once sink in a simulated cluster. The sink's real code runs in virtual time."""
