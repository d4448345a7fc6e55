"""Settings of models, targets and chips."""
