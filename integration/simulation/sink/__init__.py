"""The exactly-once sink in a simulated cluster. Its real code and client run in virtual time."""
