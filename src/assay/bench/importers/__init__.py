"""Other tools' result files as executions."""
