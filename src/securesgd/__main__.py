"""`python -m securesgd` and `torchrun -m securesgd`: the command line."""

from securesgd.cli import main

if __name__ == "__main__":
    main()
