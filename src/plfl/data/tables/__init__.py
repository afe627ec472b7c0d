"""Meter exports: which columns, which stamps, which numbers a file of readings holds."""
