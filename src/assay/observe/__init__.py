"""observe: what a run says and what it costs, while it goes on."""
