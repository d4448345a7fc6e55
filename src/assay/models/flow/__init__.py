"""Models: every layer of one on a target, next to the reference."""
