"""The foundation: errors, checks, random streams, weights, data and files."""
