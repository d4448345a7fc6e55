"""The originals' own file formats."""
