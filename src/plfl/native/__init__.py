"""Kernels in C for the CPU, behind functions that XLA computes too: an LSTM layer, a dense layer,
Adam.

They are compiled once per machine by its own C compiler, for its own processor, into the cache
folder (`library`), and called from compiled programs through XLA's foreign-function interface
(`calls`). Without a compiler, or with the environment variable PLFL_NATIVE=0, XLA computes the
same, slower; tests hold both equal.
"""
