"""Capture: Dynamo's graph becomes an inference ATen graph, and that becomes a weightless ONNX model.

`trace` is the entry point for every model, `graph_to_onnx` the translation, and `job` combines the two.
"""
