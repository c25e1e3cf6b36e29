"""Speed and memory against peers, as scripts that print a table; ratios within one run are what counts."""
