from hypothesis import HealthCheck, settings

# A deadline would be a time asserted on a shared machine, and so would the check for slow draws; derandomised draws make
# a failure repeatable.
settings.register_profile("spa", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("spa")
