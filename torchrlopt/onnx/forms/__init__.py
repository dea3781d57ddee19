"""One operator on both sides of the border: the ONNX node and the operator of the core."""
