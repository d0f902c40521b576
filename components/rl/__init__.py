"""Reinforcement learning: value-based agents for discrete actions, and how they are trained."""
