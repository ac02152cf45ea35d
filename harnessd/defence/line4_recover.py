"""Line 4, the session recovers: choose a trusted node; pointer and workspace go back together."""
