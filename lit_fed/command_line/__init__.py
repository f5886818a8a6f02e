"""Parser, help and checks of the command line, and the commands that need no trainer."""
