"""The paper's tables: experiments, verdicts on its claims, and one page."""
