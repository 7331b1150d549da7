"""The replicas that this broker has: their logs, leadership, high watermarks, and who waits."""
