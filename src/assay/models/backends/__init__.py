"""Back ends, the tools that compute models: their interface, and a module for each back end."""
