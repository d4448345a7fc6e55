"""What `assay bench` prints."""
