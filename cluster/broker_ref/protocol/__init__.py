"""Decode request frames into messages, and encode messages into response frames.

A message is a dataclass that covers all versions of a request or response. kio's entity classes
define the fields of each version. `reader` decodes messages, and `writer` encodes them; both
generate a function for each message class and version. `frames` handles request and response
headers.
"""
