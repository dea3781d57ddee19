"""Capture: Dynamo's graph becomes an inference ATen graph, and that a weightless ONNX model.

`trace` is the door through which every model comes in, `graph_to_onnx` the translation, `job` what both make.
"""
