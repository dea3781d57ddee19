"""Which calls compute in lower precision, so that the outputs stay within the user's error budget."""
