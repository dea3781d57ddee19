"""The experiments of the dissertation on optimising tensor graphs by model-based learning (Parker 2021)."""
