"""The paper's tables: experiments, verdicts on its claims, one page."""
