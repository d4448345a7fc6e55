"""Other tools' command lines, outputs and interfaces. The core does not import this package."""
