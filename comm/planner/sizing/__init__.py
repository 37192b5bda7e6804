"""How many rows of each table the device caches, one proposer a file: functions from demands and a budget to sizes."""
