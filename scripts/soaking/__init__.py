"""What soak.py does to runs, and what it says of them."""
