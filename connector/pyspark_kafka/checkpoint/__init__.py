"""The offsets in the Spark checkpoint of a streaming query.

    offset_log   the format of the files in `offsets/`
    files        reads and replaces files, locally and through Arrow
    progress     the last committed and the planned micro-batch

The checkpoints of this connector and of Spark's own connector have the same format.
"""
