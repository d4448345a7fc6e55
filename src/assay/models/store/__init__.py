"""The store of compiled models and results."""
