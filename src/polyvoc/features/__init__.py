"""From a photograph to local features, or to one global vector.

`decode` turns a file into upright pixels, `extract` pixels into local features, `embedding` pixels into one vector (ONNX).
`colmap` and `hloc` read features made by other tools; `feature_files` holds what both share and opens either.
"""
