"""Attention layers that decide what to look at, with their caches and what they cost."""
