"""The forecaster of the paper: an LSTM over the last hours, and a head of its own."""
