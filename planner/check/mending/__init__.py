"""Findings to corrected texts, everything else byte for byte."""
