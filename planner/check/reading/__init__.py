"""Texts to documents: JSON as DeepSpeed reads it, YAML 1.1, shell scripts, with the place of every key and value."""
