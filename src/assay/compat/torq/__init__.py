"""Torq's dashboard and session results."""
