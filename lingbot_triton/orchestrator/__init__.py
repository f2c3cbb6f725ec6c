"""Sessions: cursors, admission, pipeline, ending, recovery. Neither torch nor Triton."""
