"""`python -m lit_fed`."""

from lit_fed.cli import main

if __name__ == "__main__":
    main()
