"""The public API: `optimise`, `optimise_onnx`, `explain`, and the command line."""
