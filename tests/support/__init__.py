"""What tests share: fixtures, fakes, models, and ways to make the system misbehave."""
