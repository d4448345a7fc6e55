"""plan: a pure function from a Study to its Plan."""
