"""Models as pytest tests."""
