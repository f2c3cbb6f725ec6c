"""Programs for developers and operators; the served product imports none of them."""
