"""ONNX model to one ATen graph."""
