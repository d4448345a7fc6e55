"""config: the text of a user's file → a Study."""
