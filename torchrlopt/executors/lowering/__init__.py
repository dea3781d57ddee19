"""Lowers an ONNX model to one ATen graph."""
