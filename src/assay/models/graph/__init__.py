"""ONNX models: their graphs, layers and inputs, files of tensors, and models that are made from other models."""
