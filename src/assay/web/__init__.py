"""The pages of `assay serve`: they show what commands compute and store, and judge nothing themselves."""
