"""Planning as text: searches that a model writes into its response."""
