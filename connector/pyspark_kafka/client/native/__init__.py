"""The engine `native`: the port of `client.port` over our own wire client and record batches."""
