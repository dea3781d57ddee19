"""The TensorRT executor: engines for one GPU."""
