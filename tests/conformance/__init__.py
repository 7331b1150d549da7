"""What any Kafka broker does, as its clients see it.

Every test here passes on Apache Kafka (`--cluster=kafka`), which is what makes it a statement
about Kafka, and on the reference broker (the default).
"""
