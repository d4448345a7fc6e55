"""The convergence harness's command line."""
