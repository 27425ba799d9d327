"""How many examples a test draws that computes with each; those are slow, and many are lost."""

from hypothesis import HealthCheck, settings


def few(examples):
    return settings(max_examples=examples, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
