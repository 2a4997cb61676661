"""Between texts and tokens."""
