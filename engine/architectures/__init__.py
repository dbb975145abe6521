"""Knowledge of a model before it is loaded: whether it runs, and by what. Imports no torch."""
