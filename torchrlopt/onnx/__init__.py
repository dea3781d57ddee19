"""The ONNX boundary: model files, conversion to and from the C++ graph, and other opsets."""
