"""Chat models: of a provider, scripted, replayed, and those that stand around others."""
