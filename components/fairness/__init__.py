"""Fair decisions about people of several groups: what can be had together, and the best decision that has it."""
