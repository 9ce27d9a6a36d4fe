"""Settings of the whole test run."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# The same examples on every machine and in every run: a red test stays red until it is mended.
settings.register_profile('fixed', deadline=None, derandomize=True, max_examples=60,
                          suppress_health_check=[HealthCheck.too_slow])
# `--hypothesis-profile=search` looks for new examples.
settings.register_profile('search', deadline=None, max_examples=600,
                          suppress_health_check=[HealthCheck.too_slow])
settings.load_profile('fixed')

# What a script starts in the background ignores Ctrl-C and so does what that starts in turn: tests
# that interrupt a process would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
