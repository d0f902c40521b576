"""Graph neural networks from precomputed sparse products, boundary embedding shaping, planted graphs and loaders."""
