"""``python -m blazr``."""

from blazr.cli.app import main

if __name__ == "__main__":
    main()
