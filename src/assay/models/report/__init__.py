"""What `assay model` prints and writes."""
