"""Golden recordings: record a training that is good, check that it still converges."""
