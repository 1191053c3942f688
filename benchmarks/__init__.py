"""What eyeline costs, measured beside other ways to do the same: `make bench`."""
