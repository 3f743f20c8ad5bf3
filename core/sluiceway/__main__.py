"""``python -m sluiceway``: the same as the command ``sluiceway``."""

from sluiceway.cli import main

if __name__ == "__main__":
    main()
