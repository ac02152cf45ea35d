"""The imperative shell: record, act, record; the only place where things happen."""
