"""The exactly-once sink in a simulated cluster: its own code and client, in virtual time."""
