"""judge: values in, Verdict out; pure."""
