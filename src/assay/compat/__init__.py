"""Other tools' command lines, outputs and interfaces. Nothing below imports it."""
