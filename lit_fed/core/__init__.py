"""The kernel: pure functions over tensors and arrays, without Lightning; one folder per domain."""
