"""`assay bench` and its subcommands."""
