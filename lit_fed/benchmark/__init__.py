"""The benchmark: tasks, protocol, runs, records and comparisons."""
