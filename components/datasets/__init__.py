"""Data sets: real ones, each with what must be known to use it, and planted generators whose truth is known."""
