"""cli: one module per command, loaded when it is called."""
