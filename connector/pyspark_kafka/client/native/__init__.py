"""The engine `native`: the port of `client.base` over our own wire client and record batches."""
