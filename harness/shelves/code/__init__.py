"""Programs as answers: lending the tester that runs them, and the reward part of passed tests."""
