"""Old import paths, kept for one version."""
