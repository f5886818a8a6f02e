"""What the command line says and understands, around the commands of `lit_fed.cli`."""
