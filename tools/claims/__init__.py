"""The claims of the papers: their records, verdicts by rule, pages and pictures, and how to run one again."""
