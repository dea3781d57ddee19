"""Learn to optimise (Mayer 2023): a task with known answers, for the same learner and the same collectors."""
