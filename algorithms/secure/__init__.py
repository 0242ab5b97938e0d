"""Secure sums: a server learns the sum of the clients' vectors, and nothing else."""
