"""Maps operators between their ONNX and core forms."""
