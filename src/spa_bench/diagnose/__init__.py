"""Find problems in the rollouts of any training stack."""
