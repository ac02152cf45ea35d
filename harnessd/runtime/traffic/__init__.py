"""Traffic control: limits before a call, breakers behind it, and what both know of a dependency's health."""
