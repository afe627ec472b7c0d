"""The forecaster of recipe `forecast`: today seen beside past days that were like it."""
