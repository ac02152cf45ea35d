"""Language: what is written and how it is read: places, figures, names, facts, shapes; shared by all kinds."""
