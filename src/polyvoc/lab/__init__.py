"""What a researcher needs: datasets, measures, baselines of the field, experiments. The engine knows nothing of it."""
