"""The operating system, each thing once. Imports nothing of ours but errors."""
