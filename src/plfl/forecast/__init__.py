"""What learns: scaling, windows, models, baselines and metrics."""
