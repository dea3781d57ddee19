"""What the experiments share in which rows ask a machine for measured times."""
