"""Implements the exactly-once sink: a two-phase commit with Kafka transactions.

Each task attempt writes its rows in its own transaction and leaves the transaction *prepared*: all
rows are acknowledged, and the transaction is open. The driver then writes one durable decision to
the commit topic, in a transaction with the sink's own transactional id (`sink_id`, the value of the
`transactionalId` option). After that, the driver commits the transactions of all tasks.

    names            defines the transactional ids of task attempts, which begin with the sink id
    steps            names the protocol's steps and their failpoints
    failpoint_client adds a failpoint before and after each request from a client
    messages         defines the results that tasks return to the driver
    decisions        defines decisions, as values and as records of the commit topic
    commit_log       keeps the records of the commit topic that this process has read
    commit_topic     creates, checks, reads and writes the commit topic
    planning         runs the steps before the tasks of a batch: fence, read, roll forward, sweep
    task             runs a task attempt
    commit           runs the steps after the tasks: verify, decide, roll forward, mark, sweep
    abort            cleans up after a failed batch
    roll_forward     commits the transactions of a decision
    sweep            aborts open transactions of earlier attempts and runs
    source_offsets   reads the source offsets of a micro-batch from its checkpoint
    operator_command builds the command that error messages recommend to the operator
    clock            reads the wall clock, for comparison with transaction timeouts
    write            runs planning, tasks and commit when Spark calls a writer
    operator_report  determines the state of a sink with read-only requests
    operator_repair  implements `--recover` and `--forget`
    operator_text    formats the operator report as text and JSON

Invariant: only `write` depends on the order of Spark's calls (`messages` uses one Spark class). All
network access goes through `client.transactional_port.TransactionalClient`.
"""
