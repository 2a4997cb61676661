"""Models in GGUF files: read within bounds, and dequantised once into an ordinary directory."""
