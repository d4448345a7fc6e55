"""Studies and runs: expanding, supervising, summarising, and the runner that other products use."""
