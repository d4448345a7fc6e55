"""Interfaces to the operating system, each in one place. Imports nothing of ours but errors."""
