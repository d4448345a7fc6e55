"""flows: the only place where rooms meet."""
