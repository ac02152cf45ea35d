"""Simulation: pool, engine, policies and store of the product on virtual time, under seeded faults and crashes.

The store is the real one on real files; what is played is the world's edge: a model, a paying service, persons, the
disk's room, the wall clock. `python -m tests.simulation --seeds 2000` runs many; one seed is one replayable run.
"""
