"""Tests of `broker_ref.log`: the disk is memory, time is a number, crashes lose what they may."""
