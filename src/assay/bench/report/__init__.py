"""Builds the documents that `assay bench` prints."""
