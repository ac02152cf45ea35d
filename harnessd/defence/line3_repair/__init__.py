"""Line 3, the context boundary repairs: pairing, protocol rules, compaction plan, emergency, token estimate."""
