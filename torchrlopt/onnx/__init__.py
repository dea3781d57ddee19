"""The border to ONNX: files, the C++ graph read from a model and written as one, other opsets."""
