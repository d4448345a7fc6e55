"""observe: what a run reports and what it uses, while it runs."""
