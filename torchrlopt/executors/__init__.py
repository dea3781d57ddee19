"""Executors: what turns an ONNX model into a callable. `registry` finds them by name."""
