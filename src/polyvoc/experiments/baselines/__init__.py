"""Other methods to compare with: rank aggregation, joint PCA, ASMK."""
