"""The leaderboard: training methods compared at equal budgets on several boards."""
