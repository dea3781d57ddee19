"""Changes ONNX files that real exporters wrote, and gives them to what takes files."""
