"""Layers of networks: LSTM and dense ones, for CPU and GPU."""
