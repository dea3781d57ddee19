"""ATen operators as ONNX nodes, one subject a file, collected in one table.

Importing the package fills the table.
"""

from torchrlopt.capture.translate import elementwise, index, layout, linear, nn, reduce, symbolic

__all__ = ["elementwise", "index", "layout", "linear", "nn", "reduce", "symbolic"]
