"""Transfer: whole sessions as files: out of the daemon, into a page to read, and in again from here or elsewhere."""
