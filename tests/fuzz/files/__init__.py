"""Mutates ONNX files of real exporters, and passes them to everything that reads files."""
