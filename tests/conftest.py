from hypothesis import settings

# A deadline would be a time asserted on a shared machine; derandomised draws make a failure repeatable.
settings.register_profile("spa", deadline=None, derandomize=True)
settings.load_profile("spa")
