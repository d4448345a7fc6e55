"""Functions that compare values and return a verdict; they read and write no files."""
