"""`python -m spa`."""

from spa.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
