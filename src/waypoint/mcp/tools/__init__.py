"""The tools a model can call, grouped by what they are about."""
