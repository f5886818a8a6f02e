"""The machine around a run: whole files, paths that people give, memory."""
