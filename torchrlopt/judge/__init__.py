"""How near is near enough: tolerances, a float64 run, what rounding noise does, errors part by part."""
