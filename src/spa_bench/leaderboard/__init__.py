"""The leaderboard: methods on boards, compared at equal budgets."""
