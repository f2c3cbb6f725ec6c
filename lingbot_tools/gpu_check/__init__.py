"""The network on this machine's GPU: how fast it is, and whether it computes what it should."""
