"""`assay golden` and its subcommands."""
