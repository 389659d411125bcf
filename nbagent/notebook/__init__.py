"""Where a person meets a run."""
