"""What several runs have in common and where they differ: their files, short names and pictures."""
