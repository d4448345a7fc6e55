"""Tools that compute a model: one module for each back end, one small interface, one process of its own."""
