"""The commands for operators.

    arguments         arguments and exit codes that the commands have in common
    transactions      shows and repairs the state of an exactly-once sink
"""
