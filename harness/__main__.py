"""Let `python -m harness` be `bench`."""

from harness.cli import main

if __name__ == "__main__":
    main()
