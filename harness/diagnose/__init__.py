"""`entrobench diagnose`: why the entropy of one run collapsed or exploded, read from its logged curves; no torch."""
