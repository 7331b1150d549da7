"""The replicas on this broker: leaders, followers, high watermarks and delayed operations."""
