"""harnessd: a daemon that runs AI-agent tasks unattended and makes them survive."""

__version__ = "0.1.0"
