"""`python -m planner` is `dsplan`."""

from planner.cli.main import main

if __name__ == "__main__":
    main()
