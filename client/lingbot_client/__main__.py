"""`python -m lingbot_client` is the command line."""

from lingbot_client.cli import main

if __name__ == "__main__":
    main()
