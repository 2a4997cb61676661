"""Programs as answers: an environment that runs them in a WebAssembly Python and counts steps."""
