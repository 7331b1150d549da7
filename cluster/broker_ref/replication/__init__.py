"""The replicas on a broker: leaders, followers, high watermarks and delayed operations."""
