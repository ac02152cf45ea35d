"""Telling: events become incidents, incidents become alerts, and alerts are delivered until somebody took them."""
