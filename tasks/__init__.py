"""How a stage runs: parameters, DVC, Prefect, MLflow, Ray, claims and reports. Knows no paper by name."""
