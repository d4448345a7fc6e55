"""The commands for studies and runs."""
