"""The reports that `assay model` prints and writes."""
