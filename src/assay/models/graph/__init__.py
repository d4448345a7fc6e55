"""ONNX models: their graphs, their layers, their inputs, and the back ends that compute them."""
