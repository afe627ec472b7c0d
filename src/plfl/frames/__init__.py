"""The forecaster for people who have data frames: fit, predict, cross-validate."""
