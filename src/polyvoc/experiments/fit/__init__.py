"""Fits: the line of the Bayes model, likelihood tables, probabilities of hits and of duplicates."""
