"""ONNX files that optimisers of files are compared on, and the optimisers; see `baselines.files`."""
