"""Pure functions that judge tensors and layers."""
