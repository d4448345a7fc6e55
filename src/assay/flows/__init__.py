"""Old module names that `job.sh` of earlier run directories calls."""
