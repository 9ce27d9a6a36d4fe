"""A robot in a box: a simulated arm, its table and tasks. MuJoCo is imported where it is used."""
