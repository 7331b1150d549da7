"""Tests of `broker_ref.log` with a disk in memory, a virtual clock and simulated crashes."""
