"""Models of families without a decoder here, computed by transformers' own code."""
