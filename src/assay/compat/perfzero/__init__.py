"""PerfZero's command line, workspace, summaries and uploads."""
