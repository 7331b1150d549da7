"""Decode request frames into messages, and encode messages into response frames.

A message is a dataclass for all versions of a request or response. kio's entity classes define the
fields of each version. `reader` decodes requests, `writer` encodes responses, and `frames` handles
request and response headers.
"""
