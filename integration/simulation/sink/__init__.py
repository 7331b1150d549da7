"""The exactly-once sink in a simulated cluster: its real code and client, in virtual time."""
