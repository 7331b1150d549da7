"""Bugs that Kafka had, put back into the core for the simulation to find."""
