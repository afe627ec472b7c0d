"""What learns and forecasts: windows, models, calibration, baselines and metrics; a client's own
model, and the one that comes with plfl.
"""
