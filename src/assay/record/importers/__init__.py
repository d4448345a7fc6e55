"""What other tools wrote, recognised by content: the registry, and readers of their runs."""
