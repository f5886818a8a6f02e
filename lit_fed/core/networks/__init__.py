"""What the kernel knows of networks: their layers, fresh ones, precision, shared forward passes."""
