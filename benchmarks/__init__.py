"""Speed and memory against peers, as scripts that print a table; only ratios within one run are comparable."""
