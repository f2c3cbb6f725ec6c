"""How fast the network is on this machine's GPU, and whether it computes what it should.

Needs torch (and pydantic, for the options) alone, no server and no network; what needs more is left
out, and the report says so.
"""
