"""The APIs that the controller serves: one file per Kafka API key."""
