"""What a forecaster has to beat: repetitions, ridge regression, boosted trees."""
