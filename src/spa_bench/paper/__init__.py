"""The paper's tables: experiments, verdicts on the paper's claims, and a page of results."""
