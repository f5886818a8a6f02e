"""Which model serves each client: blends of finished runs, and whether joining pays."""
