"""Drawing tokens from the policy."""
