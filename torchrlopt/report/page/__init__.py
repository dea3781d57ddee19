"""The HTML page of a report: graphs, operators by time, steps, sources; one file, no network."""
