"""The sink that writes every row exactly once: a two-phase commit over Kafka's transactions.

Each task attempt writes in a transaction of its own and leaves it *prepared*: all acknowledged, the
transaction open. The driver then decides once, durably, in the commit topic, in a transaction of X
(`transactionalId`), and after that commits every task's transaction.

    names        the transactional ids: X, and those of task attempts under it
    steps        the protocol's steps by name, and its failpoints
    watched      a client whose every request is a failpoint
    messages     what a task tells the driver
    decisions    what is decided, as records of the commit topic
    commit_log   the log of the commit topic, as far as this process has read it
    commit_topic that topic: created, checked, read, written
    planning     before the tasks of a batch: fence, read, roll forward, sweep
    task         what a task attempt does
    commit       after the tasks: verify, decide, roll forward, mark, sweep
    abort        after a failure
    roll_forward commits what was decided: a ladder of outcomes
    sweep        fences what earlier attempts and runs left open
    source_offsets  the offsets of a micro-batch, read from its checkpoint
    by_hand      the command that an error names where only an operator can go on
    clock        the time that transactions are as old by
    write        what Spark's writers share: options, planning once, which client
    writers      Spark's writers; stream_arrow_writer is the one that Spark 4.1 has
    operator_report  what stands under X, found by looking alone
    operator     recover and forget by hand
    operator_text    the report as text and JSON

Invariant: nothing here but writers and `write` knows what Spark calls when (its messages are of a
class of Spark's); only `client.transactional_port` leads to the network.
"""
