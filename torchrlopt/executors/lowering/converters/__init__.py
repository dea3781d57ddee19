"""ONNX operators as ATen calls: one table, keyed by (domain, operator type); each subject has its file."""
