"""Coverage-guided fuzzing: `python -m tests.fuzz`, and the corpus that tests replay."""
