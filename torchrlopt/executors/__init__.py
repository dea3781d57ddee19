"""Executors turn an ONNX model into a callable. `registry` looks them up by name."""
