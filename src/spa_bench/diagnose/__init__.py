"""Problems in the rollouts of any training stack."""
