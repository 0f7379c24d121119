"""Readers of datasets and ground truth, descriptor files, a synthetic dataset, and the cache of features."""
