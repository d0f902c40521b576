"""Triton kernels, each beside its pure-torch reference. Needs torch and triton alone."""
