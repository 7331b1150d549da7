"""Frames in, frames out: kio's entities as the schema, our own version-agnostic messages.

`reader` turns the bytes of any version of a request into one message class, `writer` turns one
message into the bytes of any version of a response, `frames` knows the headers around them.
"""
