"""plan: a Study → a Plan; pure."""
