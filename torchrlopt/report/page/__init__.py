"""The HTML page of a report: graphs before and after, operators by time, steps, sources; one file, no network."""
