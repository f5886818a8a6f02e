"""The kernel: pure functions over tensors and arrays, without Lightning; folders go by their domain."""
