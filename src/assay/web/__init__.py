"""The pages of `assay serve`: they render the documents and read the index of the commands, and decide nothing."""
