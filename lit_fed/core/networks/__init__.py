"""Networks: layers, fresh models, precision, shared forward passes."""
