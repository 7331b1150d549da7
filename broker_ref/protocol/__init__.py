"""Frames to messages and back: kio's entities as the schema, our own version-independent messages.

`reader` decodes a request of any version into one message class, `writer` encodes one message as a
response of any version, and `frames` handles the request and response headers.
"""
