"""Simulator: a model service on loopback, a process of its own, shares no code with providers.

`python -m harnessd.simulator` speaks three wire protocols as strictly as the real services, plays scripts as a function
of the transcript it is shown, and injects faults by seed. What a test may ask of it: `GET /requests`.
"""
