"""Is there anything to learn about precision: priors for the error that roundings cause, and their rivals."""
