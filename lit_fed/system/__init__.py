"""The machine around a run: files, locks, ranks, memory, paths, and what settings may name."""
