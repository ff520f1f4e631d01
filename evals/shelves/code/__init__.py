"""Programs as answers: the task `programs`, the extraction `code`, the grader `unit_tests` and its sandbox."""
