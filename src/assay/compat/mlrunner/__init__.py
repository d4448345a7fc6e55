"""mlrunner's command line and messages."""
