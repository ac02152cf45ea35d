"""The demo: a daemon, a simulated model service and three real tasks, with everything that goes wrong shown."""
