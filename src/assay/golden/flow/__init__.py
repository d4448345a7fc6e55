"""Gathering, checking and comparing golden recordings."""
