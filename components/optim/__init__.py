"""Optimisers, gradient estimators and tangent kernels."""
