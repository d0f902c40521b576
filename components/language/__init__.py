"""Small causal language models and the text they are trained on."""
