"""Fault injection between nodes and clients, for all backends: see `proxy` and `links`."""
