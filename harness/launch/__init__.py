"""How cells get machines."""
