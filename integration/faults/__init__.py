"""Faults between nodes and clients, for any backend: see `proxy` and `links`."""
