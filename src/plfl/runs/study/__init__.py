"""Grids of runs: what a study file says, how its runs are trained together, folds in time."""
