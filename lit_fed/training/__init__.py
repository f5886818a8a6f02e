"""The Lightning shell around the rounds: module, loops, checkpoints, output."""
