"""`python -m tests.bench`."""

from tests.bench.command import main

if __name__ == "__main__":
    main()
