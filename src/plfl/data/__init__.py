"""What we learn from: meter readings, weather and building facts on one time grid."""
