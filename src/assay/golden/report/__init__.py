"""The reports that `assay golden` prints and writes."""
