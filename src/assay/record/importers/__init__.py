"""Files of other tools, recognised by content: the registry, and readers of their runs."""
