"""``python -m sparsegen``: the command line without its script on PATH."""

from sparsegen.cli.main import main

if __name__ == "__main__":
    main()
