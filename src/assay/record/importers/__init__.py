"""Recognises files of other tools by their content: the registry of importers, and readers of their runs."""
