"""The commands for operators.

arguments         arguments and exit codes that several commands share
transactions      shows and repairs the state of an exactly-once sink
offsets           shows, resets and copies the offsets of a streaming query
offset_arguments  the arguments of `offsets`
offset_targets    queries the cluster for the offsets that a reset requests
offset_reset      calculates new offsets, and the new content of the checkpoint
compile_pyspark   adds bytecode to the archives of PySpark
"""
