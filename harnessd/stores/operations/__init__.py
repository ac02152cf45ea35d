"""Operations: what the daemon itself keeps beside tasks: revisions, breakers and costs, what people are to be told."""
