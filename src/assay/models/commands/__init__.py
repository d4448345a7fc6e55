"""`assay model` and its subcommands."""
