"""Models: every layer of one on a target, beside the reference."""
