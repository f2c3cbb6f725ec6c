"""Long runs that look for whatever grows."""
