"""What `assay golden` prints and writes."""
