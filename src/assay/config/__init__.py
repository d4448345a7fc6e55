"""config: parses the text of a user's file to a Study."""
