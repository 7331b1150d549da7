"""The `native` engine, which implements `client.port` with `wire` and `records`."""
