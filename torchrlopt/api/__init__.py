"""What users call: `optimise`, `optimise_onnx`, `explain`, and the command line."""
