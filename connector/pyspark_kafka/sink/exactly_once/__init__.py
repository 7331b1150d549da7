"""The sink that writes every row exactly once: a two-phase commit over Kafka's transactions.

Each task attempt writes in a transaction of its own and leaves it *prepared*: all rows are
acknowledged, and the transaction is open. The driver then writes one durable decision to the commit
topic, in a transaction of the sink's transactional id (`sink_id`, the option `transactionalId`).
After that it commits the transactions of all tasks.

    names            the transactional ids of task attempts, which begin with the sink id
    steps            the protocol's steps by name, and its failpoints
    failpoint_client a client whose every request is a failpoint
    messages         what a task returns to the driver
    decisions        decisions, as values and as records of the commit topic
    commit_log       the log of the commit topic, as far as this process has read it
    commit_topic     that topic: created, checked, read, written
    planning         before the tasks of a batch: fence, read, roll forward, sweep
    task             the work of a task attempt
    commit           after the tasks: verify, decide, roll forward, mark, sweep
    abort            after a failure
    roll_forward     the committer: commits the transactions of a decision
    sweep            fences open transactions of earlier attempts and runs
    source_offsets   the offsets of a micro-batch, read from its checkpoint
    operator_command the command that an error recommends if only an operator can continue
    clock            the wall clock that transaction timeouts are compared with
    write            planning, tasks and commit, as Spark's writers call them
    operator_report  the state of a sink, found by read-only requests
    operator_repair  `--recover` and `--forget`
    operator_text    the report as text and JSON

Invariant: only `write` knows when Spark calls what (`messages` uses one class of Spark's); all
network access is through `client.transactional_port.TransactionalClient`.
"""
