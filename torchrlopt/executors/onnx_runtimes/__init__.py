"""Executors that run the ONNX model itself: ONNX Runtime and OpenVINO."""
