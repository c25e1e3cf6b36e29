"""The methods: one file each, and one explicit table."""
