"""The substitutions that TASO was released with (Jia et al. 2019), read into the notation of our library."""
