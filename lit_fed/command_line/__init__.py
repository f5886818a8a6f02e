"""What surrounds the commands of `lit_fed.cli`: parser, help, completion, checks of what is given, and `partition`."""
