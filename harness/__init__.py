"""The harness: everything that is neither a method nor a task."""
