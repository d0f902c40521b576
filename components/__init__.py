"""Algorithms by field, each usable alone: no Prefect, DVC, MLflow or Ray in here."""
