"""A run from its config to its page: train, tune, compare, write, look again; studies and
newcomers.
"""
