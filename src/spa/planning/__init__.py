"""Planning: search over states that responses lead to, and searches that a model writes as text."""
