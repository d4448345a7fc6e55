"""Renders values as text, tables and charts."""
