"""Optimisers and gradient transforms."""
