"""The command lines of runx and sumx."""
