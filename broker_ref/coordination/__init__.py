"""What the coordinators of groups and of transactions have in common: a log of their own each."""
