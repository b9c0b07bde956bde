"""`python -m modelreg.cli` is `modelreg`."""

from modelreg.cli.main import main

if __name__ == "__main__":
    main()
